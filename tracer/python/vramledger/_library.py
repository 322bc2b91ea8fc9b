"""The C functions of libvramledger_allocator.so, by ctypes."""

import ctypes
import importlib.machinery
import importlib.util
import json
import os
import sysconfig
from pathlib import Path

# Numbers of tracer/format/vocabulary.h.
PHASES = {
    "load": 1, "data": 2, "forward": 3, "recompute": 4, "backward": 5, "optimizer": 6, "zero_grad": 7, "eval": 8, "save": 9,
    "communication": 10, "idle": 11,
}
PHASE_NAMES = {number: name for name, number in PHASES.items()}
PARAMETER, BUFFER, GRADIENT, OPTIMIZER_STATE, INPUT, OUTPUT = range(1, 7)

LIBRARY_NAME = "libvramledger_allocator.so"    # mode plugin: any PyTorch
TORCH_LIBRARY_NAME = "libvramledger_torch.so"  # modes torch and observe: the PyTorch it was built for


class LibraryError(RuntimeError):
    """The allocator library is missing or of another version."""


def library_path(name=LIBRARY_NAME):
    """Where a library of ours is: $VRAMLEDGER_LIBRARY (or beside it), beside this package, or in the source tree's build folder."""
    named = os.environ.get("VRAMLEDGER_LIBRARY")
    if named:
        if not Path(named).is_file():
            raise LibraryError(f"VRAMLEDGER_LIBRARY names '{named}', which is no file")
        candidates = [Path(named) if name == LIBRARY_NAME else Path(named).with_name(name)]
    else:
        here = Path(__file__).resolve().parent
        candidates = [here / "lib" / name, here.parents[2] / "build" / "lib" / name]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise LibraryError(f"{name} was not found (looked at {', '.join(map(str, candidates))}); build it, or set VRAMLEDGER_LIBRARY")


def torch_library_path(version):
    """Where the library for modes torch and observe is; LibraryError when it was not built, or for another PyTorch than `version`."""
    path = library_path(TORCH_LIBRARY_NAME)
    try:
        built_for = ctypes.CDLL(str(path)).vramledger_torch_version()
    except (OSError, AttributeError) as error:
        raise LibraryError(f"'{path}' cannot be loaded into PyTorch {version} ({error}): build vramledger again for it") from None
    major, minor = (int(part) for part in version.split("+")[0].split(".")[:2])
    if built_for != major * 100 + minor:
        raise LibraryError(f"'{path}' was built for PyTorch {built_for // 100}.{built_for % 100}, but this is {version}: build vramledger again for it")
    return path


def module_calls():
    """The extension that follows module calls; LibraryError when it was not built for this Python, or $VRAMLEDGER_MODULE_CALLS is 0."""
    if os.environ.get("VRAMLEDGER_MODULE_CALLS") == "0":
        raise LibraryError("VRAMLEDGER_MODULE_CALLS=0 forbids the extension")
    path = str(library_path("_calls" + sysconfig.get_config_var("EXT_SUFFIX")))
    loader = importlib.machinery.ExtensionFileLoader("vramledger._calls", path)
    try:
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader("vramledger._calls", loader))
        loader.exec_module(module)
    except ImportError as error:
        raise LibraryError(f"'{path}' cannot be loaded: {error}") from None
    return module


class Library:
    """Typed access; every method may be called from any thread."""

    def __init__(self, path=None):
        self.path = Path(path) if path else library_path()
        try:
            self._c = c = ctypes.CDLL(str(self.path))
        except OSError as error:
            raise LibraryError(f"'{self.path}' cannot be loaded: {error}") from None
        for name, result, arguments in (
            ("set_policy", ctypes.c_int, [ctypes.c_char_p]),
            ("open_trace", ctypes.c_size_t, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]),
            ("close_trace", None, []),
            ("open_trace_when_used", ctypes.c_size_t, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]),
            ("has_trace", ctypes.c_int, []),
            ("hooks_active", None, [ctypes.c_int]),
            ("intern", ctypes.c_uint32, [ctypes.c_char_p]),
            ("begin_scope", None, [ctypes.c_int, ctypes.c_uint32]),
            ("end_scope", None, []),
            ("enter_module", None, [ctypes.c_uint32, ctypes.c_int]),
            ("exit_module", None, []),
            ("module_depth", ctypes.c_size_t, []),
            ("name", ctypes.c_int, [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64]),
            ("step_done", None, [ctypes.c_uint32]),
            ("mark", None, [ctypes.c_char_p]),
            ("metadata", None, [ctypes.c_char_p]),
            ("phase", ctypes.c_int, []),
            ("statistics", ctypes.c_size_t, [ctypes.c_char_p, ctypes.c_size_t]),
            ("reset_peaks", None, [ctypes.c_int]),
            ("reset_accumulated", None, [ctypes.c_int]),
            ("set_node_reader", None, [ctypes.c_void_p]),
            ("watch_with_cupti", None, []),
            ("yield_cupti", None, []),
        ):
            try:
                function = getattr(c, f"vramledger_{name}")
            except AttributeError:
                raise LibraryError(f"'{self.path}' has no function vramledger_{name}: it is of another version") from None
            function.restype, function.argtypes = result, arguments
            setattr(self, f"_{name}", function)
        # Called at every module and step: the bare foreign functions, without a Python frame in between.
        self.enter_module = self._enter_module
        self.exit_module = self._exit_module
        self.begin_scope = self._begin_scope
        self.end_scope = self._end_scope
        self.name = self._name
        self.step_done = self._step_done
        self.hooks_active = self._hooks_active
        self.module_depth = self._module_depth
        self.close_trace = self._close_trace
        self.reset_peaks = self._reset_peaks
        self.reset_accumulated = self._reset_accumulated
        self.set_node_reader = self._set_node_reader
        self.watch_with_cupti = self._watch_with_cupti
        self.yield_cupti = self._yield_cupti

    def call(self, function, *arguments):
        """Calls a function of the library that answers with a sentence in a buffer when it fails; raises LibraryError then."""
        error = ctypes.create_string_buffer(4096)
        foreign = getattr(self._c, function)
        foreign.restype = ctypes.c_size_t
        if foreign(*arguments, error, ctypes.c_size_t(len(error))):
            raise LibraryError(error.value.decode(errors="replace"))

    def address(self, function):
        """The address of an exported function, as PyTorch's setters want it."""
        return ctypes.cast(getattr(self._c, function), ctypes.c_void_p).value

    def open_trace(self, path, when_used=False):
        """Starts the trace, whose file may appear only when CUDA is used; raises LibraryError with one sentence if that fails."""
        self.call("vramledger_open_trace_when_used" if when_used else "vramledger_open_trace", ctypes.c_char_p(os.fsencode(path)))

    def set_policy(self, name):
        """False when there is no such policy."""
        return bool(self._set_policy(name.encode()))

    def memory_fraction_of(self, device):
        """Of 1. Raises LibraryError with the reason where the allocator could not be made, as for a wrong setting."""
        fraction = ctypes.c_double()
        self.call("vramledger_memory_fraction_of", ctypes.c_int(device), ctypes.byref(fraction))
        return fraction.value

    def has_trace(self):
        return bool(self._has_trace())

    def intern(self, text):
        return self._intern(text.encode(errors="replace"))

    def mark(self, text):
        self._mark(text.encode(errors="replace"))

    def metadata(self, values):
        self._metadata(json.dumps(values).encode())

    def phase(self):
        return PHASE_NAMES.get(self._phase(), "unknown")

    def statistics(self):
        capacity = 1 << 16
        while True:
            text = ctypes.create_string_buffer(capacity)
            length = self._statistics(text, capacity)
            if length < capacity:
                return json.loads(text.value.decode())
            capacity = length + 1
