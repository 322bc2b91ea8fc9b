"""For the processes that the tests start: none ends while PyTorch's backward threads still hold a Python object.

PyTorch 2.15 (2.11 does not) hands a copy of the caller's context to the threads of a backward call. Such a thread may drop it after the call
has returned; where the interpreter is ending by then, Python before 3.14 ends the thread inside a destructor, and the process aborts
with "terminate called without an active exception": with PyTorch's own allocator too, and more often on a busy machine.
"""

import atexit
import contextvars
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
