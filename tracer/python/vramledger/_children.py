"""Processes that multiprocessing starts anew (methods spawn and forkserver) from a script under `python -m vramledger run`: each gets
the allocator as its parent did, and writes a trace of its own if it uses CUDA."""

import functools
import importlib.abc
import os
import re
import sys
import traceback
from multiprocessing import spawn, util

from ._install import InstallError, installed, installed_by_launcher, trace_name
from ._launch import install_or_less, name_device_report, say


def follow(options):
    """Whatever process multiprocessing starts from now on is told. options: "trace" (a path as the user wrote it, or None),
    "names_device_report", "command", and "install", the keywords of install(); all of plain values."""
    original = spawn.get_preparation_data

    @functools.wraps(original)
    def with_ours(name):
        data = original(name)
        data["vramledger"] = _Message(options, name)
        return data

    spawn.get_preparation_data = with_ours


class _Message:
    """Acts where it is unpickled: before the new process imports the script, and so before it can use CUDA."""

    def __init__(self, options, name):
        self._call = f"_children.begin({options!r}, {name!r})"

    def __reduce__(self):
        # By exec, because a name that the new process cannot import would end it, as would any exception from here. The package
        # there may be of another version.
        code = f"""try:
    from vramledger import _children
    {self._call}
except Exception as error:
    import sys
    print(f"vramledger: {{error}}; this process runs without vramledger", file=sys.stderr, flush=True)
"""
        return exec, (code, {})


def trace_of_child(path, name):
    """The trace of the process that multiprocessing calls `name`: numbered as it numbers them, by process id where the script chose the name."""
    number = re.fullmatch(r"\w*Process-(\d+(?::\d+)*)", name)
    suffix = f".process{number[1].replace(':', '-')}" if number else f".process.{os.getpid()}"
    path = trace_name(path)
    return f"{path[:-4]}{suffix}.vlt" if path.endswith(".vlt") else path + suffix


def begin(options, name):
    """In the new process."""
    follow(options)
    trace = None
    if options["trace"] is not None:
        trace = trace_of_child(options["trace"], name)
        if options["names_device_report"]:
            name_device_report(trace)
    # Most such processes never need PyTorch, whose import takes seconds.
    _when_imported("torch", functools.partial(_install, options, trace, name))


def _install(options, trace, name):
    if installed() is not None:
        return
    try:
        # Most such processes never use CUDA, and many are killed (the workers of a pool), so that none could take its trace away.
        library = install_or_less(trace, **options["install"], trace_when_used=True)
    except InstallError as error:
        say(f"{error}; {name} runs without vramledger")
        return
    installed_by_launcher()
    library.metadata({"command": options["command"]})
    if trace is not None and library.has_trace():
        import torch

        # A data loader's worker never comes to this.
        torch.cuda._lazy_call(lambda: _tell(name, trace))
        # Processes of a fork server end without C's exit handlers. The last of multiprocessing's own.
        util.Finalize(None, library.close_trace, exitpriority=-1000)


def _tell(name, trace):
    # CUDA is being initialised, and must be whatever happens here.
    try:
        try:
            shown = os.path.relpath(trace)
        except OSError:  # the current folder is gone
            shown = trace
        say(f"{name} writes its own trace: {shown}")
    except Exception:
        pass  # standard error is closed


def _when_imported(name, action):
    def guarded():
        try:
            action()
        except Exception:
            say(f"this process runs without vramledger:\n{traceback.format_exc()}")

    if name in sys.modules:
        guarded()
    else:
        sys.meta_path.insert(0, _Watch(name, guarded))


class _Watch(importlib.abc.MetaPathFinder):
    def __init__(self, name, action):
        self._name, self._action = name, action

    def find_spec(self, name, path=None, target=None):
        if name != self._name:
            return None
        spec = self._found_by_others(path, target)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            execute = spec.loader.exec_module

            def then_act(module):
                execute(module)
                # Not before: whoever only asks where the module is (importlib.util.find_spec) does not import it.
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self._action()

            spec.loader.exec_module = then_act
        return spec

    def _found_by_others(self, path, target):
        for finder in list(sys.meta_path):
            if finder is not self and hasattr(finder, "find_spec") and (spec := finder.find_spec(self._name, path, target)) is not None:
                return spec
        return None
