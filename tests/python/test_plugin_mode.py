"""Mode plugin: what PyTorch's plug-in interface leaves out, answered or refused with what to do instead."""

from pathlib import Path

import pytest
from conftest import LIBRARY, PURE_FORM, TORCH

MODELS = Path(__file__).with_name("equal_models.py")


def test_statistics_equal_those_of_the_native_allocator(bench):
    seen = bench.answers(MODELS, ("native", "plugin"))
    for model, native in seen["native"].items():
        ours = seen["plugin"][model]["stats"]
        assert len(ours) > 100
        if TORCH == (2, 11):  # later releases have a key or two of their own
            assert ours.keys() == native["stats"].keys()
        assert ours == {key: native["stats"][key] for key in ours}, model


GRAPHS = """
import torch
{install}
x = torch.ones(1 << 20, device="cuda")
first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.cuda.graph(first):
    y = x * 2
inside = y.data_ptr()
del y
torch.cuda.empty_cache()
kept = torch.cuda.memory_reserved()
with torch.cuda.graph(second):  # on the same stream as the first
    z = x * 3
print("SHARED", z.data_ptr() == inside)
del z
second.reset()
first.reset()
torch.cuda.empty_cache()
print("GIVEN BACK", kept - torch.cuda.memory_reserved())
more = [torch.ones(5 << 20, device="cuda") for _ in range(3)]  # where the device had those
"""


@pytest.mark.parametrize("form", ["torch", "plugin", "pure"])
def test_what_a_graph_has_given_back_serves_nobody_else(bench, form):
    """Its replay would write there."""
    install = PURE_FORM if form == "pure" else f"import vramledger\nvramledger.install(mode={form!r}, trace='t.vlt')"
    out = bench.dryrun(GRAPHS.format(install=install), env={"VRAMLEDGER_TRACE": "t.vlt"} if form == "pure" else None).stdout
    assert "SHARED False" in out
    assert f"GIVEN BACK {20 << 20}" in out
    bench.tool("check", bench.folder / "t.vlt")
    # A replay knows no pools, so it holds segments elsewhere; what lives at once is the same: x, three of `more`, and the two blocks that PyTorch before 2.15
    # makes for a capture's random state, whether that is used or not.
    random_state = 1024 if TORCH < (2, 15) else 0
    assert bench.json("replay", "t.vlt")["peak_live_bytes"] == bench.json("report", "t.vlt")["peak"]["rounded_bytes"] == (64 << 20) + random_state


def test_a_wrong_memory_fraction_is_refused_where_it_is_asked_for(bench):
    script = """
    import torch, vramledger
    vramledger.install(mode="plugin")
    print("FRACTION", torch.cuda.get_per_process_memory_fraction())
    """
    done = bench.dryrun(script, env={"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.5"})
    assert "FRACTION 0.5" in done.stdout
    done = bench.dryrun(script, env={"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:1.1"}, check=False)
    assert done.returncode != 0
    assert "allocator setting 'per_process_memory_fraction': expected a number from 0 to 1, got '1.1'" in done.stderr


def test_a_benchmark_of_convolutions_is_left_off_and_said_once(bench):
    """PyTorch would ask a plug-in for its largest free block, and raise at the first convolution."""
    done = bench.dryrun("""
    import torch, vramledger
    torch.backends.cudnn.benchmark = True
    vramledger.install(mode="plugin")
    torch.backends.cudnn.benchmark = True
    with torch.backends.cudnn.flags(benchmark=True):
        print(torch.nn.Conv2d(3, 8, 3).cuda()(torch.ones(2, 3, 32, 32, device="cuda")).shape)
    """)
    assert "torch.Size([2, 8, 30, 30])" in done.stdout
    assert done.stderr.count("cudnn.benchmark stays off") == 1


def test_a_refusal_from_within_pytorch_says_what_to_do_instead(bench):
    done = bench.dryrun("""
    import torch, vramledger
    set_benchmark = torch._C._set_cudnn_benchmark
    vramledger.install(mode="plugin")
    set_benchmark(True)
    torch.nn.Conv2d(3, 8, 3).cuda()(torch.ones(2, 3, 32, 32, device="cuda"))
    """, check=False)
    assert done.returncode == 1
    assert "CUDAPluggableAllocator does not yet support cacheInfo" in done.stderr
    assert "mode 'torch' has it, and so has mode 'observe'" in "\n".join(done.stderr.splitlines()[-2:])


def test_a_pool_behind_pytorchs_own_allocator_takes_nothing_over(bench):
    """The library may serve a memory pool only: torch.cuda's statistics are then PyTorch's own."""
    done = bench.dryrun(f"""
    import torch
    plugin = torch.cuda.memory.CUDAPluggableAllocator({str(LIBRARY)!r}, "vramledger_malloc", "vramledger_free")
    torch.backends.cudnn.benchmark = True
    with torch.cuda.use_mem_pool(torch.cuda.MemPool(plugin.allocator())):
        x = torch.ones(1 << 20, device="cuda")
    y = torch.ones(1 << 20, device="cuda")
    print("ALLOCATED", torch.cuda.memory_allocated(), torch.backends.cudnn.benchmark, len(torch.cuda.memory_snapshot()))
    """, env={"VRAMLEDGER_TRACE": "t.vlt"})
    assert f"ALLOCATED {8 << 20} True 2" in done.stdout
    assert "vramledger: " not in done.stderr


def test_the_end_of_a_capture_that_was_not_told_of_ends_no_program(bench):
    done = bench.dryrun("""
    import ctypes, torch, vramledger
    library = vramledger.install(mode="plugin")
    torch.ones(1, device="cuda")
    for function in ("vramledger_end_allocate_to_pool", "vramledger_release_pool"):
        getattr(ctypes.CDLL(str(library.path)), function)(0, ctypes.c_ulonglong(0), ctypes.c_ulonglong(7))
    for reset in (torch._C._cuda_resetPeakMemoryStats, torch._C._cuda_resetAccumulatedMemoryStats):
        try:
            reset(5)
        except RuntimeError as error:
            print("REFUSED", error)
    print("WENT ON")
    """)
    assert "WENT ON" in done.stdout and done.stdout.count("REFUSED vramledger: there is no CUDA device 5") == 2
    assert "endAllocateToPool: not currently recording" in done.stderr and "releasePool: there is no pool of this id" in done.stderr


def test_what_an_older_pytorch_cannot_be_told_is_said(bench):
    """Objects with the setters of releases that are not installed here."""
    done = bench.dryrun("""
    import torch
    from vramledger._library import Library
    from vramledger._plugin import complete, connect

    class WithoutStreams:
        def set_init_fn(self, address):
            raise AssertionError("half connected")

    class WithOtherPools:
        told = []
        def set_record_stream_fn(self, address):
            self.told.append(address)
        def set_release_pool(self, address):
            raise AssertionError("pools that were never begun")

    library = Library()
    print("REFUSED", connect(WithoutStreams(), library, torch))
    class Bare:
        class _C:
            pass
        class cuda:
            class memory:
                pass
            empty_cache = is_initialized = None
        class UntypedStorage:
            pass

    complete(library, Bare)
    print("SERVES", connect(WithOtherPools(), library, torch), WithOtherPools.told == [library.address("vramledger_record_stream")])
    """)
    assert "cannot tell an allocator about streams (no set_record_stream_fn)" in done.stdout
    assert "SERVES None True" in done.stdout
    assert "cannot tell a plug-in of the pools of CUDA graphs" in done.stderr
