"""Mode observe: PyTorch's own allocator, watched. Nothing changes for the script, and the ledger is the same as when ours serves."""

import json

import pytest
from conftest import EXAMPLES
from test_torch_mode import BEHAVIOUR


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_every_interface_still_answers_and_everything_is_followed(bench, settings):
    env = {"PYTORCH_ALLOC_CONF": settings} if settings else None
    answers = {}
    for mode in ("native", "observe"):
        out = bench.folder / f"{mode}.json"
        done = bench.dryrun(BEHAVIOUR, mode, out, env=env)
        answers[mode] = json.loads(out.read_text())
    assert answers["observe"] == answers["native"]
    assert "FOLLOWED 122 {}" in done.stdout
    assert "vramledger:" not in done.stderr
    bench.tool("check", bench.folder / "observe.vlt")


def test_the_report_equals_that_of_our_own_allocator(bench):
    reports = {}
    for mode in ("torch", "observe"):
        trace = bench.folder / f"{mode}.vlt"
        bench.dryrun(EXAMPLES / "bert.py", "--batch", "4", allocator=mode, trace=trace)
        reports[mode] = bench.json("report", trace)
    for key in ("peak", "category_peaks", "phase_peaks", "fragmentation"):
        for report in reports.values():
            _drop_times(report[key])
        assert reports["observe"][key] == reports["torch"][key], key


def _drop_times(value):
    if isinstance(value, dict):
        for key in [k for k in value if k.endswith("_ns")]:
            del value[key]
        for item in value.values():
            _drop_times(item)
    elif isinstance(value, list):
        for item in value:
            _drop_times(item)


def test_installed_late_it_takes_over_what_is_in_use(bench):
    out = bench.dryrun("""
    import torch, vramledger
    kept = [torch.empty(n << 20, dtype=torch.uint8, device="cuda") for n in (1, 3, 5, 30)]
    del kept[1]
    library = vramledger.install(mode="observe")
    kept.append(torch.empty(2 << 20, dtype=torch.uint8, device="cuda"))
    own, native = library.statistics()["devices"][0]["stats"], torch.cuda.memory_stats()
    print("DIFFERENT", {k for k, v in own.items() if k.endswith(".current") and v != native[k]})
    print("BACKEND", torch.cuda.memory.get_allocator_backend())
    """)
    assert "DIFFERENT set()" in out.stdout
    assert "BACKEND native" in out.stdout
    assert "vramledger:" not in out.stderr


def test_all_counters_and_deferred_frees_are_followed(bench):
    out = bench.dryrun("""
    import torch, vramledger
    library = vramledger.install(mode="observe", trace="t.vlt")
    side = torch.cuda.Stream()
    for n in (1, 4, 12):
        x = torch.empty(n << 20, dtype=torch.uint8, device="cuda")
        with torch.cuda.stream(side):
            y = x + 1
        x.record_stream(side)
        del x, y
        z = torch.empty(n << 20, dtype=torch.uint8, device="cuda")
    own, native = library.statistics()["devices"][0]["stats"], torch.cuda.memory_stats()
    print("DIFFERENT", {k: (v, native[k]) for k, v in own.items() if v != native[k]})
    """, options=("--delay-seed", "3"))
    assert "DIFFERENT {}" in out.stdout
    bench.tool("check", bench.folder / "t.vlt")


def test_another_current_allocator_is_named(bench):
    done = bench.dryrun("""
    import os, torch, vramledger
    plugin = torch.cuda.memory.CUDAPluggableAllocator(os.environ["VRAMLEDGER_LIBRARY"], "vramledger_malloc", "vramledger_free")
    torch.cuda.memory.change_current_allocator(plugin)
    vramledger.install(mode="observe")
    print(torch.ones(3, device="cuda").shape)
    """)
    assert "torch.Size([3])" in done.stdout
    assert "mode observe watches PyTorch's native allocator, but the current one is 'pluggable'; nothing is observed" in done.stderr
