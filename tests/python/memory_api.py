"""Calls every public function of torch.cuda.memory, torch.cuda.graphs and torch.accelerator.memory once.

    memory_api.py MODE OUT      writes {function: "works" or the first line of its refusal}
"""

import json
import os
import sys
from pathlib import Path

import torch
import vramledger

MODE, OUT = sys.argv[1:]
vramledger.install(mode=MODE)
memory, graphs, accelerator = torch.cuda.memory, torch.cuda.graphs, torch.accelerator.memory
x = torch.ones(1 << 20, device="cuda")


def raw():
    address = memory.caching_allocator_alloc(1 << 20)
    assert address
    memory.caching_allocator_delete(address)


def fraction():
    memory.set_per_process_memory_fraction(0.5)
    memory.set_per_process_memory_fraction(1.0)


def whole_switch():
    memory.caching_allocator_enable(False)
    memory.caching_allocator_enable(True)


def pool():
    with memory.use_mem_pool(memory.MemPool()):
        torch.ones(100, device="cuda")


def capture():
    captured = graphs.CUDAGraph()
    with graphs.graph(captured):
        y = x * 2
    captured.replay()
    del y
    captured.reset()


def swap():
    plugin = memory.CUDAPluggableAllocator(os.environ["VRAMLEDGER_LIBRARY"], "vramledger_malloc", "vramledger_free")
    memory.change_current_allocator(plugin)


def history():
    memory._record_memory_history(max_entries=100)
    memory._dump_snapshot(str(Path(OUT).with_suffix(".pickle")))
    memory._record_memory_history(enabled=None)


def special(function):
    model = torch.nn.Linear(8, 8).cuda()
    return {
        memory.caching_allocator_alloc: raw,
        memory.caching_allocator_delete: raw,
        memory.caching_allocator_enable: whole_switch,
        memory.set_per_process_memory_fraction: fraction,
        memory.CUDAPluggableAllocator: lambda: memory.CUDAPluggableAllocator(os.environ["VRAMLEDGER_LIBRARY"], "vramledger_malloc", "vramledger_free"),
        memory.change_current_allocator: swap,
        memory.MemPool: memory.MemPool,
        memory.use_mem_pool: pool,
        graphs.CUDAGraph: capture,
        graphs.graph: capture,
        graphs.make_graphed_callables: lambda: graphs.make_graphed_callables(model, (torch.randn(4, 8, device="cuda"),)),
    }.get(function, function)


def attempt(call):
    try:
        call()
        return "works"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


answers = {}
for module, names in (
    (memory, memory.__all__),
    (graphs, ["is_current_stream_capturing", "graph_pool_handle", "CUDAGraph", "graph", "make_graphed_callables"]),
    (accelerator, accelerator.__all__),
):
    for name in names:
        answers[f"{module.__name__}.{name}"] = attempt(special(getattr(module, name)))
answers["torch.cuda.memory._record_memory_history, _dump_snapshot"] = attempt(history)
answers["Tensor.record_stream"] = attempt(lambda: x.record_stream(torch.cuda.Stream()))
# x is alive: PyTorch's own allocator, which is not in use, would say 0 in modes torch and plugin.
assert accelerator.memory_allocated() >= 4 << 20 and accelerator.max_memory_allocated() >= 4 << 20
Path(OUT).write_text(json.dumps(answers))
