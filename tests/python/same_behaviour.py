"""Uses PyTorch's memory interfaces one after the other and writes what each answered.

    same_behaviour.py MODE OUT      MODE: native (PyTorch's own allocator), torch (ours) or observe; all must write the same

In mode observe the statistics that we keep are compared with PyTorch's as well.
"""

import gc
import json
import pickle
import sys
import time
from pathlib import Path

import torch

MODE, OUT = sys.argv[1:]
MIB = 1 << 20


def block(mebibytes):
    return torch.empty(int(mebibytes * MIB), dtype=torch.uint8, device="cuda")


def stats():
    return dict(torch.cuda.memory_stats())


def layout(pool=None, sizes_of_free_blocks=False):
    """What a free block was last asked for is told only on request: it depends on the order in which the threads of a backward gave up theirs."""
    segments = torch.cuda.memory_snapshot() if pool is None else torch.cuda.memory_snapshot(pool)
    return [[s["address"], s["total_size"], s["allocated_size"], s["active_size"], s["segment_type"], list(s["segment_pool_id"]),
             [[b["address"], b["size"], b["requested_size"] if sizes_of_free_blocks or b["state"] != "inactive" else None, b["state"]]
              for b in s["blocks"]]] for s in segments]


def refusal(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return None


def graphs():
    x = torch.zeros(1 << 20, device="cuda")
    graph, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x + 1) * 2
        z = y.sum()
    inside = layout()
    with torch.cuda.graph(second, pool=graph.pool()):
        w = y * 3
    outside = torch.zeros(1 << 20, device="cuda")
    graph.replay()
    shared = layout(), stats()
    del z, w
    graph.reset()
    second.reset()
    torch.cuda.empty_cache()
    kept = layout()
    del y, graph, second, outside
    torch.cuda.empty_cache()
    return inside, shared, kept, layout(), stats()


def graphed_callables():
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)).cuda()
    graphed = torch.cuda.make_graphed_callables(model, (torch.randn(64, 256, device="cuda", requires_grad=True),))
    graphed(torch.randn(64, 256, device="cuda", requires_grad=True)).sum().backward()
    # The backward's thread lets go of the graph after the call has returned: on a busy machine some blocks are still there.
    before = None
    while before != (before := layout()):
        time.sleep(0.05)
    seen = layout(), stats()
    del model, graphed
    gc.collect()
    torch.cuda.empty_cache()
    return seen, stats()


def pools():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        a = block(3)
        b = block(30)
        del b
        torch.cuda.empty_cache()
    c = block(30)
    seen = layout(), layout(pool.id), pool.use_count(), len(pool.snapshot())
    del a, c, pool
    torch.cuda.empty_cache()
    after = layout(), stats()
    whole = torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(whole):
        d, e = block(3), block(3)
    unsplit = layout(whole.id)
    del d, e, whole
    torch.cuda.empty_cache()
    return seen, after, unsplit, layout(), stats()


def sizes_of_free_blocks():
    """Which size a free block, alone or merged from several, says that it was last asked for."""
    pool, seen = torch.cuda.MemPool(), []
    with torch.cuda.use_mem_pool(pool):
        blocks = [block(size) for size in (0.1, 0.2, 0.3, 0.25, 3, 7, 2.5)]
    for i in (1, 0, 2, 5, 4, 3, 6):
        blocks[i] = None
        seen.append(layout(pool.id, sizes_of_free_blocks=True))
    return seen


def lending_pool():
    pool = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        a = block(400)
    del a
    torch.cuda.set_per_process_memory_fraction(0.01)
    try:
        lent = block(390)
        seen = layout(), stats()
        del lent
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    del pool
    torch.cuda.empty_cache()
    return seen, stats()


def out_of_memory():
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda device, size, total, free: seen.append([device, size, total, free]))
    torch.cuda.set_per_process_memory_fraction(0.5)
    fraction = torch.cuda.get_per_process_memory_fraction()
    kept = block(100)
    errors = refusal(lambda: block(60_000)), refusal(lambda: torch.empty(1 << 61, dtype=torch.uint8, device="cuda"))
    torch.cuda.set_per_process_memory_fraction(1.0)
    errors += (refusal(lambda: block(82_000)), refusal(lambda: torch.cuda.set_per_process_memory_fraction(2.0)))
    del kept
    return fraction, errors, seen, stats()


def streams():
    side = torch.cuda.Stream()
    x = block(8)
    x.record_stream(side)
    with torch.cuda.stream(side):
        y = block(8)
    del x
    z = block(8)
    seen = layout()
    torch.cuda.synchronize()
    w = block(8)
    del y, z, w
    torch.cuda.empty_cache()
    return seen, stats()


def captures_on_two_streams():
    """Memory that a second stream used in a capture, in the next capture into the same pool and after it."""
    torch.cuda.empty_cache()
    main, side = torch.cuda.Stream(), torch.cuda.Stream()
    seen = []
    for reuse in (False, True):
        torch.cuda.memory._set_allocator_settings(f"graph_capture_record_stream_reuse:{reuse}")
        pool, graphs = torch.cuda.graph_pool_handle(), []
        for _ in range(2):
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.stream(main):
                graphs[-1].capture_begin(pool=pool)
                x = block(8)
                side.wait_stream(main)
                x.record_stream(side)
                main.wait_stream(side)
                seen.append(x.data_ptr())
                del x
                graphs[-1].capture_end()
            seen.append(stats()["active.all.current"])
        block(1)
        seen += [stats()["active.all.current"], layout()]
        for graph in graphs:
            graph.reset()
        torch.cuda.empty_cache()
    torch.cuda.memory._set_allocator_settings("graph_capture_record_stream_reuse:False")
    return seen


def raw_and_base():
    address = torch.cuda.caching_allocator_alloc(5 * MIB)
    seen = stats()["allocated_bytes.all.current"]
    torch.cuda.caching_allocator_delete(address)
    return address, seen, stats()["allocated_bytes.all.current"]


def library_workspaces():
    torch.backends.cudnn.benchmark = True
    convolution = torch.nn.Conv2d(8, 8, 3).cuda()
    convolution(torch.randn(4, 8, 32, 32, device="cuda")).sum().backward()
    torch.backends.cudnn.benchmark = False
    return stats()["allocation.all.current"] > 0


def history():
    torch.cuda.memory._record_memory_history(max_entries=1000)
    torch.cuda.memory._set_memory_metadata("mine")
    with torch.autograd.profiler.record_function("my part"):
        x = block(2)
    torch.cuda.memory._set_memory_metadata("")
    del x
    path = Path(OUT).with_suffix(".pickle")
    torch.cuda.memory._dump_snapshot(str(path))
    snapshot = pickle.loads(path.read_bytes())
    torch.cuda.memory._record_memory_history(enabled=None)
    block(2)
    trace = [[e["action"], e["size"], e.get("user_metadata", ""), any("same_behaviour" in f["filename"] for f in e.get("frames", ()))]
             for e in snapshot["device_traces"][0]]
    return sorted(snapshot), trace, len(torch.cuda.memory._snapshot()["device_traces"][0]), torch.cuda.memory._snapshot()["allocator_settings"]


def stacks():
    """Which segments, blocks and events have one: a whole segment, one that is cut, and one that was cut once."""
    seen = []
    for context in ("alloc", "all", "state", None):
        torch.cuda.empty_cache()
        torch.cuda.memory._record_memory_history(context=context, stacks="python")
        whole, cut, small = block(30), block(6), block(0.25)
        gone = block(0.25)
        del small, gone
        for _ in range(2):
            snapshot = torch.cuda.memory._snapshot()
            seen.append([[s["total_size"], bool(s.get("frames")), [bool(b.get("frames")) for b in s["blocks"]]] for s in snapshot["segments"]])
            seen.append([[e["action"], e["size"], bool(e.get("frames"))] for e in snapshot["device_traces"][0]])
            del whole, cut
            torch.cuda.empty_cache()
            whole = cut = None
        torch.cuda.memory._record_memory_history(enabled=None)
    return seen


def profile():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        x = torch.ones(1 << 20, device="cuda")
        del x
    return [[e.key, e.device_memory_usage] for e in profiler.key_averages() if e.device_memory_usage]


def accelerator():
    x = block(10)
    seen = dict(torch.accelerator.memory_stats()), torch.accelerator.memory_allocated(), torch.accelerator.memory_reserved()
    del x
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.reset_accumulated_memory_stats()
    torch.accelerator.empty_cache()
    return seen, torch.accelerator.max_memory_allocated(), torch.accelerator.max_memory_reserved()


def summaries():
    return torch.cuda.memory_summary(), torch.cuda.memory_allocated(), torch.cuda.max_memory_reserved(), torch.cuda.memory_cached()


def changed_settings():
    seen = []
    # Not expandable_segments: PyTorch 2.15 ends with a segmentation fault when it is switched here.
    for text in ("roundup_power2_divisions:4", "max_split_size_mb:40", "garbage_collection_threshold:0.5,max_non_split_rounding_mb:30", ""):
        torch.cuda.memory._set_allocator_settings(text)
        kept = [block(n) for n in (0.7, 3, 21, 45, 130)]
        seen += [layout(), stats()]
        del kept[::2]
        kept.append(block(33))
        seen += [layout(), torch.cuda.memory._snapshot()["allocator_settings"]]
        kept.clear()
        torch.cuda.empty_cache()
    return seen, stats()


def caching_off():
    torch.cuda.caching_allocator_enable(False)
    x = block(10)
    seen = stats()["allocated_bytes.all.current"]
    del x
    torch.cuda.caching_allocator_enable(True)
    return seen, stats()["allocated_bytes.all.current"]


if __name__ == "__main__":
    if MODE != "native":
        import vramledger

        library = vramledger.install(mode=MODE, hooks=False, trace=Path(OUT).with_suffix(".vlt"))
    # First of all things, so that later ones find the cache equally warm.
    torch.zeros(1, device="cuda")
    answers = {}
    for step in (graphs, graphed_callables, pools, sizes_of_free_blocks, lending_pool, out_of_memory, streams, raw_and_base, library_workspaces, history, stacks, profile,
                 accelerator, summaries, changed_settings, caching_off, captures_on_two_streams):
        gc.collect()
        try:
            answers[step.__name__] = step()
        except Exception as error:
            answers[step.__name__] = type(error).__name__
            print("FAILED", step.__name__, error, file=sys.stderr)
    if MODE == "observe":
        own, native = library.statistics()["devices"][0]["stats"], stats()
        # Peaks and sums were reset in PyTorch's on the way.
        print("FOLLOWED", len(own), {k: (v, native[k]) for k, v in own.items() if k.endswith(".current") and v != native[k]})
    Path(OUT).write_text(json.dumps(answers, default=str))
