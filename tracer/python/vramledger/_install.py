"""Putting the allocator in place, and what a script may say to it."""

import contextlib
import os
import platform
import sys

from . import _plugin
from ._library import PHASES, Library, LibraryError, torch_library_path

MODES = ("torch", "plugin", "observe")
POLICIES = ("native", "vmm")

_library = None
_hooks = None
_installing = False   # install() is under way, so that nobody else adds the hooks
_by_launcher = False  # "python -m vramledger run" did it, before the script could


class InstallError(RuntimeError):
    """The allocator could not be put in place; the message is one sentence that says why and what to do."""


class TraceError(InstallError):
    """The trace could not be opened. Installing without one may still work."""


def installed():
    """The Library if our allocator serves this process, else None."""
    return _library


def require():
    if _library is None:
        raise InstallError("vramledger is not installed in this process: call vramledger.install() first, or start the script with 'python -m vramledger run'")
    return _library


def trace_name(path):
    """The path with "%p" and "%r" filled in, as the library does it."""
    return os.fspath(path).replace("%p", str(os.getpid())).replace("%r", os.environ.get("RANK", "0"))


def install(trace=None, hooks=True, mode=None, policy=None):
    """Makes vramledger PyTorch's CUDA allocator. Must come before CUDA is used; once per process; cannot be undone.

    trace: path of the trace to write ("%p" becomes the process id, "%r" the RANK), None for none.
    hooks: register PyTorch's global module and optimizer hooks, which give phases and names.
    mode:  "torch" is an allocator of PyTorch's own kind, with torch.cuda.memory_stats, graphs and pools; it needs the library that
           was built for this PyTorch. "plugin" needs only PyTorch's plug-in interface, which has no snapshots and pools. "observe" replaces nothing and watches
           PyTorch's own allocator. None is torch where its library is there, else plugin.
    policy: "native" is PyTorch's own, to the byte; "vmm" does not fragment, on devices with virtual memory management. None is
           what VRAMLEDGER_POLICY says, else native. Has no meaning in mode observe.
    Raises InstallError; nothing is changed then.
    """
    return install_with(trace, hooks, mode, policy)


def install_with(trace, hooks, mode, policy, trace_when_used=False):
    """install(). trace_when_used: the trace appears only when CUDA is used."""
    global _library, _hooks, _installing, _by_launcher
    import torch  # a process that the launcher follows is given vramledger by this

    if _library is not None and _by_launcher:
        # The script would have done it itself; started by the launcher it need not, and what the launcher was told wins.
        _by_launcher = False
        print("vramledger: install() in the script does nothing here: the launcher has installed vramledger already", file=sys.stderr, flush=True)
        return _library
    if _library is not None:
        raise InstallError("vramledger is already installed in this process")
    if mode is not None and mode not in MODES:
        raise InstallError(f"mode is {', '.join(map(repr, MODES))} or None, not {mode!r}")
    if policy is not None and policy not in POLICIES:
        raise InstallError(f"policy is {', '.join(map(repr, POLICIES))} or None, not {policy!r}")
    if policy is not None and mode == "observe":
        raise InstallError("mode observe watches PyTorch's own allocator, whose policy is PyTorch's: leave policy out")
    if not torch.backends.cuda.is_built():
        raise InstallError(f"this PyTorch ({torch.__version__}) was built without CUDA, so it has no CUDA allocator to replace")
    if torch.cuda.is_initialized() and mode != "observe":
        raise InstallError("CUDA is already initialised in this process, and PyTorch only changes allocators before that: call vramledger.install() before the "
                           "first use of torch.cuda (also by imported modules), or start the script with 'python -m vramledger run'")
    mode, library = _load(mode, torch)
    if policy is not None:
        library.set_policy(policy)
    put_in_place = {"torch": _prepare_torch, "plugin": _prepare_plugin, "observe": _prepare_observe}[mode](library, torch)
    if trace is not None:
        try:
            library.open_trace(os.fspath(trace), trace_when_used)
        except LibraryError as error:
            raise TraceError(str(error)) from None
    _installing = True
    try:
        put_in_place()
    except (RuntimeError, LibraryError) as error:
        _installing = False
        raise InstallError(f"PyTorch refused to change the allocator: {error}") from None
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") == "1":
        print("vramledger: PYTORCH_NO_CUDA_MEMORY_CACHING=1 " + ("has no effect in mode plugin: requests are cached and recorded" if mode == "plugin" else
              "sends every request past the allocator, so none is recorded: unset it for a trace"), file=sys.stderr, flush=True)
    library.mode = mode
    _library = library
    _write_metadata(library, torch)
    _share_cupti(library)
    if hooks:
        from ._hooks import Hooks

        _hooks = Hooks(library)
        _hooks.attach()
        library.metadata({"hooks": True})
    return library


def _share_cupti(library):
    from ._wraps import share_cupti

    share_cupti(library)


def _load(mode, torch):
    try:
        if mode != "plugin":
            try:
                return mode or "torch", Library(torch_library_path(torch.__version__))
            except LibraryError as error:
                if mode is not None:
                    raise
                print(f"vramledger: {error}; mode plugin serves, without torch.cuda's snapshots, history and memory pools", file=sys.stderr, flush=True)
        return "plugin", Library()
    except LibraryError as error:
        raise InstallError(str(error)) from None


def _prepare_torch(library, torch):
    return lambda: library.call("vramledger_torch_install")


def _prepare_observe(library, torch):
    def begin():
        # Runs when CUDA is initialised; the script must not end because of it.
        try:
            library.call("vramledger_observe_install")
        except LibraryError as error:
            print(f"vramledger: {error}; nothing is observed", file=sys.stderr, flush=True)

    # PyTorch accepts an observer only once CUDA is initialised; at once if it is.
    return lambda: torch.cuda._lazy_call(begin)


def _prepare_plugin(library, torch):
    try:
        allocator = torch.cuda.memory.CUDAPluggableAllocator(str(library.path), "vramledger_malloc", "vramledger_free")
    except OSError as error:
        raise InstallError(str(error)) from None
    if (lacks := _plugin.connect(allocator.allocator(), library, torch)) is not None:
        raise InstallError(lacks)

    def put_in_place():
        torch.cuda.memory.change_current_allocator(allocator)
        _plugin.complete(library, torch)

    return put_in_place


def _attach_from_allocator(path):
    """Called by the allocator itself when a script plugged it in by hand: adds the hooks that install() would have added."""
    global _library, _hooks
    if _library is not None or _installing:
        return
    import torch

    from ._hooks import Hooks

    _library = Library(path)
    # None where ours serves a memory pool only, and PyTorch's own allocator the rest.
    current = torch._C._cuda_getAllocator() if hasattr(torch._C, "_cuda_getAllocator") else None
    if current is not None:
        if (lacks := _plugin.connect(current, _library, torch)) is not None:
            print(f"vramledger: {lacks}", file=sys.stderr, flush=True)  # too late to refuse
        _plugin.complete(_library, torch)
    _write_metadata(_library, torch)
    _share_cupti(_library)
    _hooks = Hooks(_library)
    _hooks.attach()
    _library.metadata({"hooks": True})


def _write_metadata(library, torch):
    virtual = os.environ.get("VRAMLEDGER_VIRTUAL_DEVICE")
    library.metadata({
        "versions": {"vramledger": "0.1.0", "torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()},
        "pid": os.getpid(),
        "rank": int(os.environ["RANK"]) if os.environ.get("RANK", "").isdigit() else None,
        "virtual_device": bool(virtual),
        "device_name": virtual or None,
    })


def attach(model=None, optimizer=None, name=None):
    """Names a model and an optimizer now, rather than at their first use. Not needed for names to appear."""
    require()
    if _hooks is None:
        raise InstallError("vramledger was installed without hooks, so names cannot be attached")
    if model is not None:
        _hooks.name_model(model, name)
    if optimizer is not None:
        _hooks._meet_optimizer(optimizer)


def installed_by_launcher():
    global _by_launcher
    _by_launcher = True


@contextlib.contextmanager
def phase(name):
    """Everything allocated by this thread inside belongs to this phase: one of the known ones ("save", "data", "eval" ...), or a name of
    your own, which is recorded beside the phase that PyTorch's signals tell."""
    library = require()
    if not isinstance(name, str) or not name:
        raise TypeError(f"phase() takes the name of a phase, not {name!r}")
    library.begin_scope(PHASES.get(name, 0), library.intern(name))
    try:
        yield
    finally:
        library.end_scope()


def close():
    """Seals the trace now. Happens by itself at exit."""
    require().close_trace()


def _table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))).rstrip() for row in rows)


def mebibytes(size):
    return f"{size / 2**20:,.1f}"


def summary(device=0):
    """A table, as text: what is in use on the device now, and at the peak, per category."""
    statistics = require().statistics()
    entry = next((d for d in statistics["devices"] if d["device"] == device), None)
    if entry is None:
        return f"device {device}: nothing was allocated"
    rows = [("MiB", "now", "at the peak", "own peak")]
    for name, sizes in sorted(entry["categories"].items(), key=lambda item: -item[1]["at_peak_bytes"]):
        rows.append((name, mebibytes(sizes["current_bytes"]), mebibytes(sizes["at_peak_bytes"]), mebibytes(sizes["peak_bytes"])))
    rows.append(("allocated", mebibytes(entry["allocated_bytes"]), mebibytes(entry["peak_allocated_bytes"]), ""))
    rows.append(("reserved", mebibytes(entry["reserved_bytes"]), mebibytes(entry["peak_reserved_bytes"]), ""))
    return f"device {device}, phase {statistics['phase']}, after {statistics['steps']} optimizer steps\n{_table(rows)}"
