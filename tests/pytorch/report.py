"""The table of PyTorch's own tests, as Markdown, from the results of run.py."""

import re
from collections import defaultdict

# Why a test cannot pass, or does not yet: (way, test) -> reason.
REASONS = {
    **{(way, "TestCudaAllocator.test_allocator_backend"): "expects PyTorch's `cudaMallocAsync` back end to be current; ours is" for way in ("torch", "plugin")},
    ("plugin", "TestCudaAllocator.test_allocator_memory_fraction_setting"): "a fraction out of range is refused in words of our own",
    **{("plugin", f"TestCudaAllocator.{test}"): "settings changed at run time reach allocators of PyTorch's own kind only" for test in ("test_allocator_settings", "test_throw_on_cudamalloc_oom")},
    ("plugin", "TestMemPool.test_graph_capture_reclaim_shared_pool"): "settings changed at run time reach allocators of PyTorch's own kind only",
    ("plugin", "TestCudaAllocator.test_cachingAllocator_raw_alloc"): "`caching_allocator_enable(False)` reaches allocators of PyTorch's own kind only",
    ("plugin", "TestCudaAllocator.test_memory_profiler_viz"): "PyTorch's profiler hears of memory from PyTorch's own kind of allocators",
    ("plugin", "TestMemPool.test_mempool_multithread"): "its threads call `createOrIncrefPool`, refused as below",
}
# PyTorch's words when a plug-in is asked for what its interface lacks.
REFUSED = re.compile(r"luggable\w* does not yet support (\w+)")

HEAD = """# PyTorch's own tests of its CUDA allocator

Made by `tests/pytorch/run.py` with PyTorch {version} and the `test/test_cuda.py` of the same version, on the virtual device (`h100-80gb`). Not part of `tests/run.sh`.
To run it again, with the folders of your own:

    python3 -m venv VENV && VENV/bin/python -m pip install torch=={version} torchvision numpy psutil hypothesis expecttest
    cmake -S . -B BUILD -G Ninja -DCMAKE_BUILD_TYPE=Release -DVRAMLEDGER_SITE_PACKAGES=VENV/lib/python3.11/site-packages
    cmake --build BUILD --target vramledger_python vramledger_stand_ins
    python3 tests/pytorch/run.py --python VENV/bin/python --build BUILD --report tests/results/pytorch_test_cuda.md

The test file is fetched from Debian's source package and checked (`--source FOLDER` takes another tree). Each test is a process of its own, and so are the
processes that it starts. A test that does not pass with PyTorch's own allocator on the virtual device says nothing about ours and is not applicable.
Tests that skip themselves are not applicable either; the classes that PyTorch makes for each kind of device (optimizers' values, external events) are left out.
"""


def shorten(text, most=150):
    text = re.sub(r"(/[\w.+-]+){2,}/", "", " ".join(text.replace("|", "\\|").split()))  # no folders of the machine
    return text if len(text) <= most else text[: most - 1] + "…"


def refused(way, name, results):
    """The function that PyTorch refused to a plug-in, where that is why the test failed."""
    found = REFUSED.search(results[way][name]["detail"])
    return found[1] if found is not None and (way, name) not in REASONS else None


def why_failed(way, name, results):
    if results[way][name]["last_line"].startswith("no answer"):
        return f"not known: too slow on the machine that made this table (with PyTorch's allocator {results['native'][name]['seconds']} s)"
    return REASONS.get((way, name), "")


def markdown(version, names, results, why_not):
    """`results`: way -> name -> what worker.py gave. What was not run with a way is not counted there, but listed."""
    native = results["native"]
    ways = [way for way in results if way != "native"]
    chosen = [n for n in names if n in native]
    applicable = [n for n in chosen if native[n]["outcome"] == "passed"]
    lines = [HEAD.format(version=version), "## Counts", ""]
    lines += ["| | " + " | ".join(["PyTorch's allocator", *ways]) + " |", "|---" * (len(ways) + 2) + "|"]
    run = {way: [n for n in applicable if n in results[way]] for way in ways}
    passed = {way: [n for n in run[way] if results[way][n]["outcome"] == "passed"] for way in ways}
    lines.append("| passed | " + " | ".join([str(len(applicable)), *(str(len(passed[w])) for w in ways)]) + " |")
    lines.append("| failed | " + " | ".join(["-", *(str(len(run[w]) - len(passed[w])) for w in ways)]) + " |")
    if any(len(run[w]) < len(applicable) for w in ways):
        lines.append("| not run | " + " | ".join(["-", *(str(len(applicable) - len(run[w])) for w in ways)]) + " |")
    lines.append(f"\n{len(names)} tests in the file: {len(names) - len(chosen)} are not about memory, streams, events, graphs or pools; of the other {len(chosen)}, "
                 f"{len(chosen) - len(applicable)} do not pass on the virtual device whatever allocator is used.")

    lines += ["", "## Failed", ""]
    for way in ways:
        failed = [n for n in run[way] if n not in passed[way]]
        lines += [f"Mode {way}: " + ("none." if not failed else f"{len(failed)}."), ""]
        by_function = defaultdict(list)
        for n in failed:
            by_function[refused(way, n, results)].append(n)
        if None in by_function:
            lines += ["| test | last line | reason |", "|---|---|---|"]
            lines += [f"| `{n}` | {shorten(results[way][n]['last_line'])} | {why_failed(way, n, results)} |" for n in by_function.pop(None)]
            lines.append("")
        if by_function:
            lines += ["Functions that PyTorch refuses to any allocator that comes through its plug-in interface, and the tests that call them:", ""]
            lines += [f"- `{function}` ({len(tests)}): " + ", ".join(t.replace(".test_", ".") for t in tests) for function, tests in sorted(by_function.items())]
            lines.append("")
        if len(run[way]) < len(applicable):
            lines += [f"Not run in mode {way}: " + ", ".join(f"`{n}`" for n in applicable if n not in run[way]) + ".", ""]

    lines += ["## Passed", "", "With PyTorch's allocator" + "".join(f", and in mode {way} where that is not said otherwise above" for way in ways[:1]) + ":", ""]
    by_class = defaultdict(list)
    for n in applicable:
        by_class[n.partition(".")[0]].append(n.partition(".")[2].removeprefix("test_"))
    lines += [f"- **{name}** ({len(tests)}): {', '.join(tests)}" for name, tests in sorted(by_class.items())]

    lines += ["", "## Not applicable: the virtual device", "", "| test | its last line with PyTorch's own allocator |", "|---|---|"]
    lines += [f"| `{n}` | {'skipped: ' if native[n]['outcome'] == 'skipped' else ''}{shorten(native[n]['last_line'] or native[n]['detail'])} |"
              for n in chosen if native[n]["outcome"] != "passed"]

    lines += ["", "## Not applicable: about something else", ""]
    by_reason = defaultdict(list)
    for n in names:
        if n not in native:
            by_reason[why_not(n)].append(n)
    for reason, tests in sorted(by_reason.items()):
        lines += [f"- {reason} ({len(tests)}): " + ", ".join(t.partition(".")[0] + "." + t.partition(".")[2].removeprefix("test_") for t in tests)]
    return "\n".join(lines) + "\n"
