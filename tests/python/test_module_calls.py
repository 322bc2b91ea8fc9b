"""The extension that follows module calls, by itself: any function and any objects in the place of PyTorch's."""

import sys

from conftest import LIBRARY

ATTACH = f"""
import ctypes, os, resource, sys, weakref
os.environ["VRAMLEDGER_LIBRARY"] = {str(LIBRARY)!r}
from vramledger._library import module_calls

def attached(module):
    return "called"

def call(module):
    return attached(*(module,))  # as Module._call_impl is called: the interpreter's short way from one Python function to another asks no entry

class Seen:
    asked = 0     # for a module's name
    entered = 0
    last = None   # (name, training)

def meet(module):
    Seen.asked += 1
    return 7

def enter(name, training):
    Seen.entered += 1
    Seen.last = (name, training)

functions = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_int)(enter), ctypes.CFUNCTYPE(None)(lambda: None), ctypes.CFUNCTYPE(ctypes.c_size_t)(lambda: 0)
enter, leave, depth = (ctypes.cast(function, ctypes.c_void_p).value for function in functions)
module_calls().attach(attached, enter, leave, depth, leave, meet, lambda *_: None, lambda *_: None)
"""


def run(bench, text):
    return bench.run([sys.executable, bench.script(ATTACH + text)]).stdout


def test_an_interrupt_while_training_is_read_ends_the_call(bench):
    out = run(bench, """
class Module:
    def __init__(self, error):
        self.error = error
    @property
    def training(self):
        raise self.error

print("ERROR", call(Module(ValueError())), Seen.last)
for error in (KeyboardInterrupt, SystemExit):
    try:
        call(Module(error()))
    except error as caught:
        print("ENDED", type(caught).__name__, Seen.entered)
""")
    assert "ERROR called (7, 0)" in out
    assert "ENDED KeyboardInterrupt 1" in out and "ENDED SystemExit 1" in out


def test_calls_go_on_when_there_is_no_memory_to_remember_more_modules(bench):
    out = run(bench, """
class Module:
    __slots__ = ("__weakref__",)
    training = True

# Their weak references stand already, so that only the extension's own table asks for more.
modules = [Module() for _ in range(250_000)]
references = [weakref.ref(module) for module in modules]
for module in modules[:200_000]:
    call(module)
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), resource.RLIM_INFINITY))
for module in modules[200_000:]:
    call(module)
print("FIRST", Seen.asked, "ENTERED", Seen.entered, "LAST", Seen.last)
call(modules[-1])
print("AGAIN", Seen.asked, "ENTERED", Seen.entered, "LAST", Seen.last)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
call(modules[-1])
call(modules[-1])
print("AFTER", Seen.asked, "ENTERED", Seen.entered, "LAST", Seen.last)
""")
    assert "FIRST 250000 ENTERED 250000 LAST (0, 1)" in out
    assert "AGAIN 250001 ENTERED 250001 LAST (0, 1)" in out
    assert "AFTER 250002 ENTERED 250003 LAST (7, 1)" in out
