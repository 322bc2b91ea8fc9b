"""For the processes that the tests start with PyTorch 2.15 or newer and Python before 3.14 (see conftest.py; others never import this): none
ends while PyTorch's backward threads still hold a Python object.

PyTorch 2.15 (2.11 does not) hands a copy of the caller's context to the threads of a backward call. Such a thread may drop it after the call
has returned; where the interpreter is ending by then, Python before 3.14 ends the thread inside a destructor, and the process aborts
with "terminate called without an active exception": with PyTorch's own allocator too, and more often on a busy machine.
"""

import atexit
import contextvars
import importlib.machinery
import importlib.util
import os
import sys
import time
import weakref

_copy = contextvars.copy_context
_handed_over = []  # weak references: contexts have no hash


def _copy_context():
    context = _copy()
    if sys._getframe(1).f_globals.get("__name__") == "torch.autograd.graph":
        _handed_over[:] = [reference for reference in _handed_over if reference() is not None] + [weakref.ref(context)]
    return context


def _wait():
    until = time.monotonic() + 10
    while any(reference() is not None for reference in _handed_over) and time.monotonic() < until:
        time.sleep(0.001)


contextvars.copy_context = _copy_context
atexit.register(_wait)


def _run_the_one_behind():
    """The machine's own sitecustomize, which Python would have imported had this one not stood before it."""
    here = os.path.dirname(os.path.abspath(__file__))
    behind = [folder for folder in sys.path if os.path.abspath(folder) != here]
    spec = importlib.machinery.PathFinder.find_spec(__name__, behind)
    if spec is not None and spec.loader is not None:
        sys.modules[__name__] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


_run_the_one_behind()
