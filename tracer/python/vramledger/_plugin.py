"""Mode plugin: what PyTorch's plug-in interface can be told about an allocator, and what it cannot.

Through that interface PyTorch learns of allocations, frees, streams and the pools of graphs. Statistics it asks of its own kind of
allocator only: they raise, or in torch.accelerator speak of an allocator that is not in use. Here ours answers them; what nobody can
answer says what to do instead.
"""

import functools
import sys

# PyTorch's setter, and the function of the library.
_SETTERS = (
    ("set_init_fn", "vramledger_init"),
    ("set_reset_fn", "vramledger_reset"),
    ("set_memory_fraction_fn", "vramledger_memory_fraction"),
    ("set_base_alloc_fn", "vramledger_base_alloc"),
    ("set_record_stream_fn", "vramledger_record_stream"),
    ("set_begin_allocate_to_pool", "vramledger_begin_allocate_to_pool"),
    ("set_end_allocate_to_pool_fn", "vramledger_end_allocate_to_pool"),
    ("set_release_pool", "vramledger_release_pool"),
)
_REFUSED = (
    "_cuda_attach_out_of_memory_observer", "_cuda_beginAllocateCurrentStreamToPool", "_cuda_beginAllocateCurrentThreadToPool", "_cuda_checkPoolLiveAllocations",
    "_cuda_getCheckpointState", "_cuda_getMemoryMetadata", "_cuda_isHistoryEnabled", "_cuda_memorySnapshot", "_cuda_record_memory_history",
    "_cuda_record_memory_history_legacy", "_cuda_setCheckpointPoolState", "_cuda_setMemoryMetadata",
)
_SIGN = "does not yet support"  # of PyTorch's refusals
_INSTEAD = "vramledger: PyTorch refuses this to every allocator that comes through its plug-in interface; mode 'torch' has it, and so has mode 'observe'"


def connect(allocator, library, torch):
    """Tells PyTorch's plug-in object the rest of our functions. A sentence if this PyTorch cannot be told what memory needs to be reused safely, else None."""
    lacking = [setter for setter, _ in _SETTERS if not hasattr(allocator, setter)]
    if "set_record_stream_fn" in lacking:
        return f"this PyTorch ({torch.__version__}) cannot tell an allocator about streams (no set_record_stream_fn); vramledger needs that to reuse memory safely"
    has_pools = "set_begin_allocate_to_pool" not in lacking
    for setter, function in _SETTERS:
        if setter not in lacking and (has_pools or "pool" not in setter):
            getattr(allocator, setter)(library.address(function))
    if not has_pools:  # releases before 2.4 have other functions for that
        print(f"vramledger: this PyTorch ({torch.__version__}) cannot tell a plug-in of the pools of CUDA graphs: memory of a captured graph would serve others, so capture none",
              file=sys.stderr, flush=True)
    return None


def complete(library, torch):
    """Answers the statistics of torch.cuda and torch.accelerator, and completes the sentences of the refusals. Does not raise: the allocator is in place."""
    def statistics(device):
        for entry in library.statistics()["devices"]:
            if entry["device"] == device:
                return _nested(entry["stats"])
        raise RuntimeError(f"vramledger: there is no CUDA device {device}")

    def reset(function):
        def of(device):
            devices = library.statistics()["devices"]  # none before CUDA is in use
            if devices and all(entry["device"] != device for entry in devices):
                raise RuntimeError(f"vramledger: there is no CUDA device {device}")
            function(device)
        return of

    for name, answer in (
        ("_cuda_memoryStats", statistics),
        ("_cuda_resetPeakMemoryStats", reset(library.reset_peaks)),
        ("_cuda_resetAccumulatedMemoryStats", reset(library.reset_accumulated)),
        ("_cuda_getMemoryFraction", library.memory_fraction_of),
        ("_accelerator_getDeviceStats", statistics),
        ("_accelerator_resetPeakStats", reset(library.reset_peaks)),
        ("_accelerator_resetAccumulatedStats", reset(library.reset_accumulated)),
        ("_accelerator_emptyCache", torch.cuda.empty_cache),
        ("_accelerator_isAllocatorInitialized", torch.cuda.is_initialized),
    ):
        _replace(torch._C, name, answer)
    for name in _REFUSED:
        _explain(torch._C, name)
    if (pool := getattr(torch.cuda.memory, "MemPool", None)) is not None:  # releases before 2.5 have none
        _explain(pool, "__init__")
    _explain(torch.UntypedStorage, "_share_cuda_")
    _keep_benchmark_off(torch)
    # What C++ code asks for by itself has no function to stand before.
    sys.excepthook = functools.partial(_hook, sys.excepthook)


def _replace(owner, name, answer):
    """By a function of its own for each name: PyTorch's compiler keeps them in a table."""
    function = getattr(owner, name, None)
    if function is None:
        return

    @functools.wraps(function)
    def answered(*args):
        return answer(*args)

    setattr(owner, name, answered)


def _nested(flat):
    """{"a.b": 1} as {"a": {"b": 1}}."""
    nested = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        inner = nested
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return nested


def _explain(owner, name):
    function = getattr(owner, name, None)
    if function is None:
        return

    @functools.wraps(function)
    def explained(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except RuntimeError as error:
            what = str(error)
            if _SIGN not in what or _INSTEAD in what:
                raise
            raise RuntimeError(f"{what.split('. If you need it')[0]}. {_INSTEAD}") from None

    setattr(owner, name, explained)


def _keep_benchmark_off(torch):
    """It asks the allocator for its largest free block, which the interface cannot answer: the first convolution would raise."""
    set_benchmark = getattr(torch._C, "_set_cudnn_benchmark", None)
    if set_benchmark is None:
        return
    said = False

    def off(wanted):
        nonlocal said
        if wanted and not said:
            said = True
            print("vramledger: torch.backends.cudnn.benchmark stays off: it asks for what PyTorch's plug-in interface cannot tell; modes 'torch' and 'observe' allow it",
                  file=sys.stderr, flush=True)
        set_benchmark(False)

    torch._C._set_cudnn_benchmark = off
    prop = type(torch.backends.cudnn).__dict__.get("benchmark")
    if hasattr(prop, "setter"):
        prop.setter = off
    if torch._C._get_cudnn_benchmark():
        off(True)


def _hook(outer, kind, error, trace):
    outer(kind, error, trace)
    try:
        what = str(error)
    except Exception:
        return
    if _SIGN in what and "luggable" in what and _INSTEAD not in what:
        print(_INSTEAD, file=sys.stderr, flush=True)
