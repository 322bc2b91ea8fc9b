"""PyTorch functions that no hook announces, wrapped so that their allocations get a phase and their results names."""

import functools
import threading

import torch
from torch.optim.optimizer import Optimizer

from ._library import PHASES

_depth = threading.local()


def wrap_all(hooks):
    for owner in (Optimizer, torch.nn.Module):
        _in_phase(owner, "zero_grad", "zero_grad", hooks)
        _in_phase(owner, "load_state_dict", "load", hooks, hooks.named_again)
    _in_phase(torch, "load", "load", hooks)
    torch.serialization.load = torch.load
    # Module.to, .cuda, .half ...: parameters keep their identity and change their storages.
    _in_phase(torch.nn.Module, "_apply", "load", hooks, hooks.named_again)
    ddp = getattr(torch.nn.parallel, "DistributedDataParallel", None)
    # Buckets are made here, buffers exchanged, and inputs moved.
    for method, after in (("_ddp_init_helper", None), ("_pre_forward", hooks.inputs_moved)):
        if ddp is not None and hasattr(ddp, method):
            _in_phase(ddp, method, "communication", hooks, after)


def share_cupti(library):
    """CUPTI serves one tool at a time: ours has it until PyTorch's profiler starts, which then finds it free."""
    import torch.autograd.profiler as profiler

    # The names by which all of PyTorch's profilers reach the native one. Without them CUPTI is left alone.
    names = [name for name in ("_prepare_profiler", "_enable_profiler") if hasattr(profiler, name)]
    if "_enable_profiler" not in names:
        return
    for name in names:
        setattr(profiler, name, _after(library.yield_cupti, getattr(profiler, name)))
    # The profiler of PyTorch 2.15 does not subscribe, so CUPTI itself would let us take its buffers.
    if torch.autograd._profiler_enabled():
        library.metadata({"outside": {"cupti": "CUPTI is in use by a profiler, and serves one tool at a time"}})
    else:
        library.watch_with_cupti()


def _after(first, original):
    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        first()
        return original(*args, **kwargs)

    return wrapped


def _in_phase(owner, method, phase, hooks, after=None):
    """The outermost call of the method (or a module's function) on this thread is a stretch of that phase; after(object, result) follows."""
    original = getattr(owner, method)
    library, number = hooks.library, PHASES[phase]
    key = f"{owner.__name__}.{method}"

    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        inner = getattr(_depth, key, False)
        if inner:
            return original(*args, **kwargs)
        setattr(_depth, key, True)
        library.begin_scope(number, 0)
        try:
            result = original(*args, **kwargs)
            if after is not None:
                after(args[0], result)
            return result
        finally:
            setattr(_depth, key, False)
            library.end_scope()

    setattr(owner, method, wrapped)
