"""Runs tests of PyTorch's own test file, each in a process of its own, with one allocator. Started by run.py on the virtual device.

    worker.py TEST_FILE WAY OUT TIMEOUT VERSION     names (Class.test) on standard input, one a line; one JSON object a line, added to OUT as each test ends
    worker.py TEST_FILE list OUT            the names of all tests, one a line

WAY is native, torch, observe or plugin. The slow imports are made once, before CUDA is touched, and each test is forked from there.
"""

import importlib.util
import io
import json
import os
import select
import signal
import sys
import time
import traceback
import types
import unittest
from pathlib import Path

TEST_MODULE = "test_cuda"


def import_test_file(path):
    spec = importlib.util.spec_from_file_location(TEST_MODULE, path)
    module = importlib.util.module_from_spec(spec)
    # Unpickling and torch.package look the module up by name.
    sys.modules[TEST_MODULE] = module
    spec.loader.exec_module(module)
    return module


def all_tests(module):
    # Not through the file's own load_tests, which belongs to PyTorch's sharding.
    loader = unittest.TestLoader()
    for name, item in sorted(vars(module).items()):
        if isinstance(item, type) and issubclass(item, unittest.TestCase) and item.__module__ == TEST_MODULE:
            yield from loader.loadTestsFromTestCase(item)


def last_line(text):
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    # PyTorch's failures end with how to run the test again.
    for i, line in enumerate(lines):
        if line.startswith("To execute this test, run the following"):
            lines = lines[:i]
            break
    return lines[-1] if lines else ""


def install(way):
    if way == "native":
        return
    import vramledger

    vramledger.install(mode=way)


def run_one(tests, way, name):
    """In the forked child. Returns [outcome, detail]."""
    os.environ["VRAMLEDGER_TEST_WAY"] = way  # for the processes that tests start, see site/sitecustomize.py
    if name not in tests:
        return ["missing", "the file has no such test"]
    install(way)
    # As the test file's own import would have done.
    sys.modules["torch"].cuda.init()
    result = unittest.TextTestRunner(stream=io.StringIO()).run(unittest.TestSuite([tests[name]]))
    if result.errors or result.failures:
        return ["failed", (result.errors + result.failures)[0][1]]
    if result.skipped:
        return ["skipped", result.skipped[0][1]]
    return ["passed", ""]


def fork_one(tests, way, name, timeout):
    reader, writer = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.setpgid(0, 0)
        log = os.open(f"{name}.{way}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        try:
            answer = run_one(tests, way, name)
        except BaseException:
            answer = ["failed", traceback.format_exc()]
        sys.stdout.flush()
        sys.stderr.flush()
        with os.fdopen(writer, "w") as out:
            json.dump(answer, out)
        # Not the interpreter's own end, which takes longer than most tests: tests/python/test_endings.py is about that.
        os._exit(0)
    os.close(writer)
    text, timed_out = b"", False
    while True:
        ready, _, _ = select.select([reader], [], [], max(0, started + timeout - time.monotonic()))
        if not ready:
            timed_out = True
            break
        part = os.read(reader, 1 << 16)
        if not part:
            break
        text += part
    os.close(reader)
    ended = wait(child, 5 if timed_out else 30, kill_first=timed_out)
    if timed_out:
        # Whoever compiles the same extension next would wait for it for ever.
        for lock in Path(os.environ["TORCH_EXTENSIONS_DIR"]).rglob("lock"):
            lock.unlink(missing_ok=True)
    outcome, detail = json.loads(text) if text and not timed_out else ["failed", ""]
    if timed_out:
        outcome, detail = "failed", f"no answer within {timeout} s"
    elif not text:
        detail = f"the process ended with {ended}"
    elif ended != "exit code 0":
        outcome, detail = "failed", f"the test {outcome}, but the process ended with {ended}"
    return {"test": name, "way": way, "outcome": outcome, "detail": detail, "last_line": last_line(detail), "seconds": round(time.monotonic() - started, 1)}


def wait(child, seconds, kill_first):
    if kill_first:
        kill(child)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
        time.sleep(0.02)
    kill(child)
    os.waitpid(child, 0)
    return f"no end {seconds} s after its answer"


def kill(child):
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(child, signal.SIGKILL)


def main():
    path, way, out = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    import torch

    # The test file and what it imports ask about the device meanwhile. The answers are known (run.DEVICE), and CUDA must not be
    # touched before the fork.
    import torch.utils._triton

    device = types.SimpleNamespace(name="virtual", major=9, minor=0, total_memory=80 << 30, multi_processor_count=132)
    answers = {(torch.cuda, "is_available"): True, (torch.cuda, "device_count"): 1, (torch.cuda, "get_device_capability"): (9, 0),
               (torch.cuda, "get_device_properties"): device, (torch.cuda, "is_bf16_supported"): True,
               (torch.utils._triton, "has_triton"): True}
    asked = {place: getattr(*place) for place in answers}
    for (module, name), answer in answers.items():
        setattr(module, name, lambda *_, answer=answer, **__: answer)
    import torch.testing._internal.common_cuda
    import torch.testing._internal.common_device_type

    torch.testing._internal.common_cuda.TEST_CUDNN = True  # would make a tensor to find out
    # Makes one class of each for every kind of device, and a tensor for each. These classes (optimizers' values, external events) are left out.
    torch.testing._internal.common_device_type.instantiate_device_type_tests = lambda cls, scope, **_: scope.pop(cls.__name__)
    tests = {test.id().partition(".")[2]: test for test in all_tests(import_test_file(path))}
    for (module, name), function in asked.items():
        setattr(module, name, function)
    if way == "list":
        out.write_text("".join(f"{name}\n" for name in tests))
        return
    assert not torch.cuda.is_initialized()
    timeout, version = float(sys.argv[4]), sys.argv[5]
    # Several workers write to one file, each line at once.
    results = os.open(out, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for name in sys.stdin.read().split():
        gave = {"torch": version, **fork_one(tests, way, name, timeout)}
        os.write(results, (json.dumps(gave) + "\n").encode())
        print(f"  {way} {name}: {gave['outcome']} in {gave['seconds']} s" + (f": {gave['last_line'][:200]}" if gave["outcome"] != "passed" else ""), flush=True)


if __name__ == "__main__":
    main()
