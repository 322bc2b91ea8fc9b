"""CUDA tensors shared between two processes (torch.multiprocessing), on the virtual device."""

import pytest

SHARED = """
import os, sys, torch, torch.multiprocessing as mp
import vramledger

def child(mode, tensors, answers):
    if mode != "native":
        vramledger.install(mode=mode)
    first = tensors.get()
    second = tensors.get()
    answers.put((tuple(first.shape), tuple(second.shape), first.device.type))
    # Two tensors of one segment: the handle is opened once, and they lie where they lie in the other process.
    answers.put(second.data_ptr() - first.data_ptr())
    free = torch.cuda.mem_get_info()[0]
    own = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
    # The shared memory is charged to its owner.
    answers.put(free - torch.cuda.mem_get_info()[0])
    del first, second
    torch.cuda.ipc_collect()
    answers.put("let go")
    assert tensors.get() == "end"

if __name__ == "__main__":
    mode = sys.argv[1]
    mp.set_start_method("spawn")
    tensors, answers = mp.Queue(), mp.Queue()
    process = mp.Process(target=child, args=(mode, tensors, answers))
    process.start()
    first = torch.ones(1 << 18, device="cuda")
    second = torch.ones(1 << 18, device="cuda")
    before = torch.cuda.memory_allocated()
    addresses = second.data_ptr() - first.data_ptr()
    tensors.put(first)
    tensors.put(second)
    print("SHAPES", answers.get(timeout=120))
    print("SAME DISTANCE", answers.get(timeout=120) == addresses)
    # Gone here, but used there: the blocks stay.
    del first, second
    torch.cuda.ipc_collect()
    print("CHARGED", answers.get(timeout=120))
    print("LET GO", answers.get(timeout=120))
    import time
    for _ in range(100):
        torch.cuda.ipc_collect()
        if torch.cuda.memory_allocated() < before:
            break
        time.sleep(0.02)
    print("FREED", before - torch.cuda.memory_allocated())
    tensors.put("end")
    process.join(60)
    print("EXIT", process.exitcode)
"""


@pytest.mark.parametrize("mode", ["native", "torch", "observe"])
def test_a_tensor_is_shared_and_lives_as_long_as_it_is_used(bench, mode):
    done = bench.dryrun(SHARED, mode, allocator=mode, trace=None if mode == "native" else bench.folder / "t.vlt")
    lines = done.stdout.splitlines()
    assert "SHAPES ((262144,), (262144,), 'cuda')" in lines
    assert "SAME DISTANCE True" in lines
    assert f"CHARGED {20 << 20}" in lines      # one segment of the child's own, nothing for what it was lent
    assert "LET GO let go" in lines
    assert f"FREED {2 << 20}" in lines
    assert "EXIT 0" in lines
    assert "Error" not in done.stderr


REFUSED = """
import torch
x = torch.ones(1 << 18, device="cuda")
try:
    x.untyped_storage()._share_cuda_()
except RuntimeError as error:
    print("REFUSED", str(error).splitlines()[0])
"""


def test_expandable_segments_are_not_shared(bench):
    done = bench.dryrun(REFUSED, allocator="torch", trace=bench.folder / "t.vlt", env={"PYTORCH_ALLOC_CONF": "expandable_segments:True"})
    assert "REFUSED memory of expandable segments cannot be shared between processes by vramledger" in done.stdout
    assert "mode observe" in done.stdout


def test_the_plug_in_interface_cannot_share(bench):
    done = bench.dryrun(REFUSED, allocator="plugin", trace=bench.folder / "t.vlt")
    assert "REFUSED CUDAPluggableAllocator does not yet support" in done.stdout
    assert "mode 'observe'" in done.stdout
