"""Runs training scripts on the official wheel and the virtual device, each in a process of its own."""

import importlib.metadata
import itertools
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("VRAMLEDGER_BUILD", ROOT / "build"))
TOOL = BUILD / "bin" / "vramledger"
LIBRARY = BUILD / "lib" / "libvramledger_allocator.so"
EXAMPLES = ROOT / "tools" / "examples"
SITE = Path(__file__).with_name("site")
TORCH = tuple(int(part) for part in importlib.metadata.version("torch").split(".")[:2])


def ends_may_abort(torch=TORCH, python=sys.version_info):
    """Whether this PyTorch can abort at the end of a process by itself, so that the processes of tests need what is in site/."""
    return torch >= (2, 15) and python < (3, 14)


if ends_may_abort():
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SITE), os.environ.get("PYTHONPATH"))))
# PyTorch 2.15 gives cuBLAS's workspace back after each product, where 2.11 keeps one for each thread; with this it keeps them too.
KEPT_WORKSPACES = {"TORCH_CUBLAS_WORKSPACE_CACHE": "1"}
# What a script has that plugs the allocator in by hand.
PURE_FORM = f"""
plugin = torch.cuda.memory.CUDAPluggableAllocator({str(LIBRARY)!r}, "vramledger_malloc", "vramledger_free")
torch.cuda.memory.change_current_allocator(plugin)
"""
# For tests of both: whether workspaces are kept.
KEEPING = [True, False] if TORCH >= (2, 15) else [True]


def differences(left, right, path=""):
    """Where two values as of JSON differ, a line for each place."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in {**left, **right}:
            if key in left and key in right:
                yield from differences(left[key], right[key], f"{path}[{key!r}]")
            else:
                yield f"{path}[{key!r}]: only {'left' if key in left else 'right'}"
    elif isinstance(left, list) and isinstance(right, list):
        if len(left) != len(right):
            yield f"{path}: {len(left)} and {len(right)} items"
        for i, (a, b) in enumerate(zip(left, right)):
            yield from differences(a, b, f"{path}[{i}]")
    elif left != right:
        yield f"{path}: {left!r} != {right!r}"


def pytest_assertrepr_compare(op, left, right):
    """A failure says where: the answers of two allocators are too long to be looked through."""
    if op == "==" and type(left) is type(right) and isinstance(left, (dict, list)):
        return ["equal values, but they differ", *(line[:200] for line in itertools.islice(differences(left, right), 20))]
    return None


class Bench:
    """What a test needs to run a script and to read its trace."""

    def __init__(self, folder):
        self.folder = folder
        self._scripts = 0

    def script(self, text):
        self._scripts += 1
        path = self.folder / f"script{self._scripts}.py"
        path.write_text(textwrap.dedent(text))
        return path

    def dryrun(self, script, *arguments, allocator="native", trace=None, options=(), device="h100-80gb", env=None, check=True, timeout=300):
        """`script` is a path or the text of one; `allocator` None leaves the choice to the tool. Returns the finished process, output as text."""
        if not isinstance(script, Path):
            script = self.script(script)
        command = [TOOL, "dryrun", "--device", device, *(["--allocator", allocator] if allocator else []), *options]
        if trace is not None:
            command += ["--trace", trace]
        command += ["--", sys.executable, script, *arguments]
        return self.run(command, env=env, check=check, timeout=timeout)

    def run(self, command, env=None, check=True, timeout=300):
        environment = {**os.environ, "VRAMLEDGER_LIBRARY": str(LIBRARY), **(env or {})}
        done = subprocess.run([str(part) for part in command], env=environment, cwd=self.folder, capture_output=True, text=True, timeout=timeout)
        if check and done.returncode != 0:
            pytest.fail(f"{' '.join(map(str, command))} exited {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done

    def answers(self, script, modes, env=None):
        """What `script MODE OUT` writes to OUT, by mode."""
        answers = {}
        for mode in modes:
            out = self.folder / f"{mode}.json"
            self.dryrun(script, mode, out, env=env)
            answers[mode] = json.loads(out.read_text())
        return answers

    def tool(self, *arguments, check=True):
        return self.run([TOOL, *arguments], check=check)

    def json(self, *arguments):
        return json.loads(self.tool(*arguments, "--json").stdout)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


@pytest.fixture(scope="session")
def shared_bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("shared"))
