"""Memory outside the allocator, on the virtual device: CUPTI, NVML, cudaMemGetInfo; and NVTX ranges of the phases."""

import json

import pytest
from conftest import BUILD, KEPT_WORKSPACES, TORCH

MIB = 1 << 20
CONTEXT = 160 * MIB   # the device's assumption
LIBRARY = BUILD / "lib" / "libnccl_like.so"
RECORDER = BUILD / "lib" / "libnvtx_recorder.so"

SCRIPT = f"""
import ctypes, sys, torch
library = ctypes.CDLL({str(LIBRARY)!r})
library.take.restype = ctypes.c_void_p
library.take.argtypes = [ctypes.c_size_t]
library.give.argtypes = [ctypes.c_void_p]
model = torch.nn.Linear(1000, 1000).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    if step == 1:
        memory = library.take(300 << 20)
    model(torch.randn(64, 1000, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    if step == 1:
        library.give(library.take(10 << 20))
"""


@pytest.mark.parametrize("mode", ["torch", "plugin", "observe"])
def test_every_owner_has_its_row(bench, mode):
    trace = bench.folder / "t.vlt"
    bench.dryrun(SCRIPT, allocator=mode, trace=trace, env={**KEPT_WORKSPACES, "VRAMLEDGER_VIRTUAL_DEVICE_OTHERS": f"{2048 * MIB},{100 * MIB}g"})
    bench.tool("check", trace)
    report = bench.json("report", trace)
    outside = report["outside"]
    assert (outside["cupti"], outside["nvml"]) == ("on", "on")
    most = outside["most"]
    libraries = {row["name"]: row["bytes"] for row in most["libraries"]}
    assert libraries["libnccl_like.so"] in (300 * MIB, 310 * MIB)
    assert most["other_processes_bytes"] == 2148 * MIB and most["other_processes"] == 2
    assert most["context_bytes"] == CONTEXT
    assert most["unexplained_bytes"] == 0
    assert most["outside_bytes"] == CONTEXT + 2148 * MIB + most["libraries_bytes"]
    assert outside["peaks"]["libraries_bytes"] == 310 * MIB
    assert [v["id"] for v in report["verdicts"]] == ["OUTSIDE"]
    text = bench.tool("report", trace).stdout
    assert "taken by libnccl_like.so" in text and "2 other processes" in text and "assumed: the device is virtual" in text
    reconciled = bench.json("reconcile", trace)
    assert reconciled["outside"] == outside
    assert "taken by libnccl_like.so" in bench.tool("reconcile", trace).stdout


def test_without_the_tools_only_their_rows_are_missing(bench):
    trace = bench.folder / "t.vlt"
    bench.dryrun(SCRIPT, allocator="plugin", trace=trace, env={"VRAMLEDGER_CUPTI": "0", "VRAMLEDGER_NVML": "0"})
    outside = bench.json("report", trace)["outside"]
    assert outside["most"]["outside_bytes"] == CONTEXT + 300 * MIB
    assert outside["most"]["unexplained_bytes"] == CONTEXT + 300 * MIB
    assert outside["most"]["context_bytes"] is None and outside["most"]["libraries"] == []
    text = bench.tool("report", trace).stdout
    assert "missing or not complete: switched off by VRAMLEDGER_CUPTI=0." in text
    assert "not told from this one's context: switched off by VRAMLEDGER_NVML=0." in text


PROFILED = SCRIPT + """
cupti = ctypes.CDLL("libcupti.so.13")
def free():
    handle = ctypes.c_void_p()
    code = cupti.cuptiSubscribe(ctypes.byref(handle), None, None)
    if code == 0:
        cupti.cuptiUnsubscribe(handle)
    return code == 0
print("FREE BEFORE", free())
for _ in range(2):
    with torch.profiler.profile(activities=list(torch.profiler.supported_activities()), profile_memory=True) as profile:
        model(torch.randn(64, 1000, device="cuda")).sum().backward()
    print("EVENTS", any("aten::addmm" in e.key for e in profile.key_averages()))
print("FREE AFTER", free())
"""


@pytest.mark.parametrize("mode", ["torch", "plugin"])
def test_the_profiler_gets_cupti(bench, mode):
    trace = bench.folder / "t.vlt"
    done = bench.dryrun(PROFILED, allocator=mode, trace=trace)
    assert "FREE BEFORE True" in done.stdout
    # The profiler subscribed: it found CUPTI free, and has it. That of PyTorch 2.15 does not subscribe, only registers its buffers.
    if TORCH < (2, 15):
        assert "FREE AFTER False" in done.stdout
    assert done.stdout.count("EVENTS True") == 2
    assert "CUPTI" not in done.stderr
    outside = bench.json("report", trace)["outside"]
    assert outside["cupti"].startswith("CUPTI was given up to a profiler after ")
    # What was recorded until then stays.
    assert outside["peaks"]["libraries_bytes"] == 310 * MIB


def test_a_tool_that_has_cupti_keeps_it(bench):
    done = bench.dryrun("""
    import ctypes, torch, vramledger
    cupti = ctypes.CDLL("libcupti.so.13")
    handle = ctypes.c_void_p()
    assert cupti.cuptiSubscribe(ctypes.byref(handle), None, None) == 0
    vramledger.install(trace="t.vlt", mode="plugin")
    x = torch.ones(1000, device="cuda")
    assert cupti.cuptiUnsubscribe(handle) == 0
    """)
    assert "Traceback" not in done.stderr
    text = bench.tool("report", bench.folder / "t.vlt").stdout
    assert "missing or not complete: CUPTI is in use by a profiler, and serves one tool at a time." in text


def test_a_profiler_that_runs_already_keeps_cupti(bench):
    bench.dryrun("""
    import torch, vramledger
    x = torch.ones(1000, device="cuda")
    with torch.profiler.profile(activities=list(torch.profiler.supported_activities())):
        vramledger.install(trace="t.vlt", mode="observe")
        y = torch.ones(1000, device="cuda")
    """)
    assert bench.json("report", bench.folder / "t.vlt")["outside"]["cupti"] == "CUPTI is in use by a profiler, and serves one tool at a time"


def test_a_failure_is_sampled(bench):
    trace = bench.folder / "t.vlt"
    bench.dryrun("""
    import torch
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    try:
        torch.empty(7 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        print("OOM")
    """, allocator="torch", trace=trace, options=("--memory", "8GiB"), env={"VRAMLEDGER_VIRTUAL_DEVICE_OTHERS": str(3 << 30)})
    report = bench.json("report", trace)
    outside = report["failed_requests"][0]["outside"]
    assert outside["reserved_bytes"] == 1 << 30
    assert outside["outside_bytes"] == CONTEXT + (3 << 30)
    assert [v["id"] for v in report["verdicts"]] == ["SHORTAGE", "OUTSIDE"]


@pytest.mark.parametrize("mode", ["torch", "plugin", "observe"])
def test_no_context_is_made_on_devices_that_are_not_used(bench, mode):
    trace = bench.folder / "t.vlt"
    bench.dryrun("""
    import torch
    torch.cuda.set_device(1)
    model = torch.nn.Linear(10, 10).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.randn(4, 10, device="cuda")).sum().backward()
    optimizer.step()
    """, allocator=mode, trace=trace, options=("--devices", "3"))
    peaks = bench.json("report", trace)
    assert peaks["device"]["index"] == 1 and peaks["outside"]["most"]["context_bytes"] == CONTEXT
    assert json.loads((bench.folder / "t.vlt.device.json").read_text())["peak_device_used_bytes"][::2] == [0, 0]


@pytest.mark.skipif(not RECORDER.exists(), reason="built without NVTX's headers")
def test_phases_are_nvtx_ranges(bench):
    trace, record = bench.folder / "t.vlt", bench.folder / "nvtx.txt"
    script = SCRIPT + """
import vramledger
with vramledger.phase("my own"):
    pass
"""
    environment = {"NVTX_INJECTION64_PATH": str(RECORDER), "NVTX_RECORDER_FILE": str(record)}
    bench.dryrun(script, allocator="plugin", trace=trace, env=environment)
    lines = [line.split(" ", 2) for line in record.read_text().splitlines()]
    started = {number: name for verb, number, name in lines if verb == "start"}
    ended = [number for verb, number, _ in lines if verb == "end"]
    assert sorted(started, key=int) == sorted(ended, key=int)     # each range ends, once
    order = [name for verb, _, name in lines if verb == "start"]
    assert order[:4] == ["load", "forward", "backward", "optimizer"] or order[:5] == ["unknown", "load", "forward", "backward", "optimizer"]
    assert order.count("forward") == order.count("backward") == order.count("optimizer") == 3
    assert [name for verb, _, name in lines if verb == "mark"] == [f"step {n} SGD#1 of Linear" for n in (1, 2, 3)]
    assert ["push", "0", "my own"] in lines and lines.count(["pop", "0", ""]) == 1
    record.unlink()
    bench.dryrun(SCRIPT, allocator="plugin", trace=trace, env={**environment, "VRAMLEDGER_NVTX": "0"})
    assert not record.exists()
