"""The operators of a training forward, with the storages under their tensors: from them the offline tool works out what autograd
saves (tools/estimate/operators.h). Recorded once for each model, from its first training forward to the backward that follows.

    record(module, args, kwargs)   a list without a run, on the meta device too

No tensor is held, nothing is computed or allocated on the device. VRAMLEDGER_OPERATORS=0 switches the recording off.
"""

import functools
import json
import os
import sys
import threading

import torch

from . import _describe
from ._operator_recorder import Recorder, last_line, tensors_in

# A metadata record of a trace holds 400,000 bytes.
_PART_BYTES = 250_000

# One recording at a time in a process; its operators are those of one thread.
_recorder = None            # of the run
_complained = False
_probe = threading.local()  # a list is made without a run: what runs is no model of the program's


# ---- in a run ----

def enabled():
    return os.environ.get("VRAMLEDGER_OPERATORS", "1") != "0"


def enter_root(library, root, name, args, kwargs, from_hook):
    """A model that has not been described begins a training forward. `from_hook`: told by one of PyTorch's global hooks, not before the call."""
    global _recorder
    try:
        if _recorder is not None and not _recorder.recording:
            _take_off()
        if _recorder is None:
            if not (enabled() and library.has_trace() and _may_record(root)):
                return
            _recorder = Recorder({"cuda"}, library)
            _recorder.add_root(root, name, args, kwargs)
            _watch_backward()
            _recorder.when_left = _left
            _recorder.begin()
            if from_hook:
                # This module's hooks had been collected before ours were among them.
                _recorder.enter_module(root)
        elif _recorder.thread == threading.get_ident():
            _recorder.add_root(root, name, args, kwargs)
    except Exception:
        if _recorder is None:
            _complain(last_line())
        else:
            _recorder._fail()
            _take_off()


def _left(recorder):
    if recorder is _recorder:
        _take_off()


def _may_record(root):
    """Neither within transforms nor where code is compiled: what runs there is not what autograd saves from."""
    # Asked of the dispatcher: functorch itself would answer out of state that it first makes for the thread, which autograd then copies
    # for every node of every backward.
    if torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode):
        return False
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    # PyTorch itself puts None there, for its functions that are never to be compiled.
    return all(backend is None for backend in getattr(dynamo, "cached_backends", {}).values())


def finish(tensors=()):
    """The backward begins, or an optimizer's step: publish what was recorded. Never raises."""
    global _recorder
    # A compiler that traces a backward has put our hooks among its guards: they must not go now.
    if _recorder is None or torch.compiler.is_compiling():
        return
    try:
        _recorder.end(tensors)
        _take_off()
    except Exception:
        _recorder = None
        _complain(last_line())


def _take_off():
    global _recorder
    recorder = _recorder
    # The key is included for one thread, which alone can take it off: else later.
    if recorder.thread != threading.get_ident():
        return
    recorder.remove()
    _unwatch_backward()
    _recorder = None
    if recorder.failed:
        _complain(recorder.failed)
    else:
        _publish(recorder)


def _complain(why):
    global _complained
    if not _complained:
        _complained = True
        print(f"vramledger: operators are not recorded, and the activations have no analytic column: {why}", file=sys.stderr, flush=True)


def _publish(recorder):
    """In pieces: each record is merged into the metadata."""
    library = recorder.library
    for key, value in recorder.to_json().items():
        pieces = _pieces(value) if isinstance(value, list) else [(None, value)]
        for number, piece in pieces:
            library.metadata({"operators": {recorder.number: {key if number is None else f"{key}.{number}": piece}}})


def _pieces(rows):
    """Pieces of a list, each short enough for a record, with their numbers."""
    begin = size = number = 0
    for i, row in enumerate(rows):
        length = len(json.dumps(row)) + 2
        if size and size + length > _PART_BYTES:
            yield number, rows[begin:i]
            begin, size, number = i, 0, number + 1
        size += length
    yield number, rows[begin:]


_watched = {}


def _watch_backward():
    """Until the backward begins, its two public entries tell us so."""
    for name in ("backward", "grad"):
        original = getattr(torch.autograd, name)

        @functools.wraps(original)
        def announced(*args, _original=original, **kwargs):
            finish(list(tensors_in(args[0] if args else next(iter(kwargs.values()), ()))))
            return _original(*args, **kwargs)

        _watched[name] = (original, announced)
        setattr(torch.autograd, name, announced)


def _unwatch_backward():
    for name, (original, announced) in _watched.items():
        if getattr(torch.autograd, name) is announced:
            setattr(torch.autograd, name, original)
    _watched.clear()


# ---- without a run ----

def probing():
    """This thread runs a module for its list of operators alone."""
    return getattr(_probe, "on", False)


def record(module, args=(), kwargs=None):
    """The operators of module(*args, **kwargs) as JSON of the schema above; it runs the forward. Works on the meta device.
    Thread rule: one call at a time in a process."""
    kwargs = kwargs or {}
    tensors = [*module.parameters(), *module.buffers(), *tensors_in((args, kwargs))]
    recorder = Recorder({t.device.type for t in tensors})
    name = type(_describe.unwrapped(module)).__name__
    recorder.add_root(module, name, args, kwargs)
    recorder.begin()
    _probe.on = True
    try:
        output = module(*args, **kwargs)
        recorder.end()
    finally:
        _probe.on = False
        recorder.recording = False
        recorder.remove()
    if recorder.failed:
        raise RuntimeError(f"the operators of {name} cannot be recorded: {recorder.failed}")
    del output
    return {**recorder.to_json(), **_describe.sizes(args, kwargs)}
