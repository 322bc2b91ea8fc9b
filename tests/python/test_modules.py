"""Which module an allocation was made for, in forward, backward and recomputation; and what follows module calls."""

import csv
import io

import pytest

MODEL = """
import torch, vramledger
from torch.utils.checkpoint import checkpoint
vramledger.install(trace="t.vlt", mode=%r)

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(64)
        self.up = torch.nn.Linear(64, 256)
        self.down = torch.nn.Linear(256, 64)
    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))

class Net(torch.nn.Module):
    def __init__(self, checkpointed):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(4))
        self.checkpointed = checkpointed
    def forward(self, x, scale=1.0):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.checkpointed == "reentrant") if self.checkpointed else block(x)
        return x * scale

net = Net(%r).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    x = torch.ones(32, 64, device="cuda", requires_grad=True)
    net(x, scale=2.0).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def events(bench):
    return list(csv.DictReader(io.StringIO(bench.tool("export", bench.folder / "t.vlt", "--format", "csv").stdout)))


def allocations(bench, phase):
    return [e for e in events(bench) if e["kind"] == "alloc" and e["phase"] == phase]


@pytest.mark.parametrize("mode", ["torch", "plugin", "observe"])
def test_backward_is_told_by_module(bench, mode):
    bench.dryrun(MODEL % (mode, None))
    made = allocations(bench, "backward")
    known = [e for e in made if e["text"]]
    assert len(known) >= 0.95 * len(made), f"{len(known)} of {len(made)}"
    of_up = {e["requested_bytes"] for e in known if e["text"].endswith(".up")}
    assert str(64 * 256 * 4) in of_up  # the gradient of its weight
    assert "Net.blocks.3.norm" in {e["text"] for e in known}


@pytest.mark.parametrize("kind", ["reentrant", "not reentrant"])
def test_recomputation_is_told_by_module(bench, kind):
    bench.dryrun(MODEL % ("torch", kind))
    again, back = allocations(bench, "recompute"), allocations(bench, "backward")
    inside = [e for e in again if ".blocks." in e["text"]]
    assert again and len(inside) >= 0.8 * len(again)
    known = [e for e in back if ".blocks." in e["text"]]
    assert len(known) >= 0.9 * len(back), f"{len(known)} of {len(back)}"


def test_both_ways_to_follow_modules_tell_the_same(bench):
    """The extension, and PyTorch's global hooks where it was not built."""
    seen = []
    for switch in ("1", "0"):
        bench.dryrun(MODEL % ("torch", None), env={"VRAMLEDGER_MODULE_CALLS": switch})
        seen.append([(e["kind"], e["phase"], e["text"], e["requested_bytes"], e["category"]) for e in events(bench) if e["kind"] in ("alloc", "module_enter", "module_exit", "name")])
        checks = bench.json("reconcile", bench.folder / "t.vlt")["activation_checks"]
        assert checks and not checks[0]["not_covered"]
        seen[-1].append(checks)
    assert seen[0] == seen[1]


def test_module_calls_keep_their_meaning(bench):
    """Errors, hooks of the script's own, keyword arguments, tracers and compilers see what they always saw."""
    out = bench.dryrun("""
    import torch, vramledger
    call = torch.nn.Module._call_impl
    vramledger.install(trace="t.vlt")
    print("SAME", torch.nn.Module._call_impl is call)
    class Odd(torch.nn.Module):
        def forward(self, x, *, fail=False):
            if fail:
                raise KeyError("mine")
            return x + 1
    odd = Odd().cuda()
    x = torch.ones(4, device="cuda")
    try:
        odd(x, fail=True)
    except KeyError as error:
        print("ERROR", error)
    try:
        odd()
    except TypeError as error:
        print("TYPE", "forward() missing 1 required positional argument" in str(error))
    order = []
    odd.register_forward_pre_hook(lambda m, a: order.append("before"))
    odd.register_forward_hook(lambda m, a, o: order.append("after") or o * 2)
    print("HOOKS", odd(x, fail=False).shape, order)
    from torch.nn.modules import module
    handle = module.register_module_forward_hook(lambda m, a, o: order.append("global"))
    odd(x)
    handle.remove()
    print("GLOBAL", "global" in order)
    graph = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))
    print("FX", [n.op for n in graph.graph.nodes])
    scripted = torch.jit.trace(torch.nn.Linear(4, 4), torch.ones(4))
    print("JIT", scripted(torch.ones(4)).shape)
    compiled = torch.compile(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.ReLU())).cuda(), backend="aot_eager", fullgraph=True)
    compiled(x).sum().backward()
    print("COMPILED", compiled(x).shape)
    lazy = torch.nn.LazyLinear(3).cuda()
    print("LAZY", lazy(x).shape)
    print("DEPTH", vramledger.installed().module_depth())
    """).stdout
    assert "SAME True" in out
    assert "ERROR 'mine'" in out and "TYPE True" in out
    assert "HOOKS torch.Size([4]) ['before', 'after']" in out and "GLOBAL True" in out
    assert "FX ['placeholder', 'call_module', 'call_module', 'output']" in out
    assert "JIT torch.Size([4])" in out and "COMPILED torch.Size([4])" in out and "LAZY torch.Size([3])" in out
    assert "DEPTH 0" in out


@pytest.mark.parametrize("switch", ["1", "0"])
def test_a_compiler_compiles_nothing_of_ours(bench, switch):
    """A model whose forward is in two parts, compiled as without us: hooks run between the parts."""
    script = """
    import torch, %s
    class Parts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        def forward(self, x):
            x = self.first(x)
            torch._dynamo.graph_break()
            return self.second(x)
    parts = Parts().cuda()
    optimizer = torch.optim.SGD(parts.parameters())
    compiled = torch.compile(parts, backend="aot_eager")
    for _ in range(2):
        compiled(torch.ones(4, 8, device="cuda")).sum().backward()
        optimizer.step()
    print("FRAMES", dict(torch._dynamo.utils.counters["frames"]))
    """
    seen = [next(line for line in bench.dryrun(script % way, env={"VRAMLEDGER_MODULE_CALLS": switch}).stdout.splitlines() if line.startswith("FRAMES"))
            for way in ("sys", "vramledger; vramledger.install(trace='t.vlt')")]
    assert seen[1] == seen[0] == "FRAMES {'total': 2, 'ok': 2}"


def test_reconcile_by_module_adds_up(bench):
    bench.dryrun(MODEL % ("torch", None))
    whole = bench.json("reconcile", bench.folder / "t.vlt", "--by", "module")
    rows = {row["category"]: row["rounded_bytes"] for row in whole["rows"]}
    for category in ("parameter", "gradient", "activation", "temporary"):
        assert sum(m["categories"].get(category, {"rounded_bytes": 0})["rounded_bytes"] for m in whole["modules"]) == rows[category]
    assert sum(m["at_peak_rounded_bytes"] for m in whole["modules"]) == whole["peak"]["rounded_bytes"]
    up = next(m for m in whole["modules"] if m["module"] == "Net.blocks.0.up")
    assert up["categories"]["parameter"]["requested_bytes"] == (64 * 256 + 256) * 4
    assert up["textbook_bytes"] == 2 * (64 * 256 + 256) * 4  # parameters and gradients; SGD keeps nothing
    shallow = bench.json("reconcile", bench.folder / "t.vlt", "--by", "module", "--depth", "1")
    assert {m["module"] for m in shallow["modules"]} <= {"Net", ""}


STACKS = """
import torch, vramledger
vramledger.install(trace="t.vlt", mode=%r)

def make(n):
    return torch.empty(n, dtype=torch.uint8, device="cuda")

def outer():
    return make(3 << 20)

kept = outer()
net = torch.nn.Linear(8, 8).cuda()
net(torch.ones(4, 8, device="cuda")).sum().backward()
"""


@pytest.mark.parametrize("mode", ["torch", "plugin"])
def test_python_stacks_name_the_line(bench, mode):
    bench.dryrun(STACKS % mode, env={"VRAMLEDGER_STACKS": "python"})
    group = next(g for g in bench.json("report", bench.folder / "t.vlt")["peak"]["blocks_by_size"] if g["each_bytes"] == 3 << 20)
    assert group["stack"].startswith("script1.py:6 make < script1.py:9 outer < script1.py:11 <module>")
    text = bench.tool("report", bench.folder / "t.vlt").stdout
    assert "3.00 MiB by script1.py:6 make < script1.py:9 outer" in text


def test_stacks_begin_with_the_script_and_long_ones_are_cut_in_the_text(bench):
    """Neither the launcher's frames, nor our own, nor those around every forward."""
    bench.dryrun("""
    import torch

    def deep(n):
        return deep(n - 1) if n else torch.empty(3 << 20, dtype=torch.uint8, device="cuda")

    class Net(torch.nn.Module):
        def forward(self, x):
            return x.new_empty(5 << 20, dtype=torch.uint8)

    kept = deep(7)
    made = Net()(torch.ones(1, device="cuda"))
    """, allocator="plugin", trace="t.vlt", env={"VRAMLEDGER_STACKS": "python"})
    stacks = {g["each_bytes"]: g["stack"] for g in bench.json("report", bench.folder / "t.vlt")["peak"]["blocks_by_size"]}
    assert stacks[3 << 20] == " < ".join(["script1.py:5 deep"] * 8 + ["script1.py:11 <module>"])
    assert stacks[5 << 20] == "script1.py:9 forward < script1.py:12 <module>"
    text = bench.tool("report", bench.folder / "t.vlt").stdout
    assert "3.00 MiB by " + "script1.py:5 deep < " * 5 + "... 4 more\n" in text


def test_cpp_stacks_name_the_function(bench):
    bench.dryrun(STACKS % "torch", env={"VRAMLEDGER_STACKS": "cpp"})
    group = next(g for g in bench.json("report", bench.folder / "t.vlt")["peak"]["blocks_by_size"] if g["each_bytes"] == 3 << 20)
    assert "at::" in group["stack"] and "empty" in group["stack"]


def test_no_stacks_unless_asked_for_and_a_wrong_wish_is_said(bench):
    done = bench.dryrun(STACKS % "torch", env={"VRAMLEDGER_STACKS": "all"})
    assert "VRAMLEDGER_STACKS is python, cpp or both, not 'all'" in done.stderr
    assert not any(g["stack"] for g in bench.json("report", bench.folder / "t.vlt")["peak"]["blocks_by_size"])
    done = bench.dryrun(STACKS % "observe", env={"VRAMLEDGER_STACKS": "python"})
    assert "mode observe records no stacks" in done.stderr


def test_what_follows_a_failed_forward_is_no_forward(bench):
    bench.dryrun("""
    import torch, vramledger
    vramledger.install(trace="t.vlt")
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(8, 8)
        def forward(self, x, fail=False):
            if fail:
                raise RuntimeError
            return self.fc(x)
    net = Net().cuda()
    x = torch.ones(4, 8, device="cuda")
    net(x).sum().backward()
    try:
        net(x, fail=True)
    except RuntimeError:
        pass
    kept = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
    """)
    assert [e["phase"] for e in events(bench) if e["kind"] == "alloc" and e["requested_bytes"] == str(5 << 20)] == ["idle"]


def test_batches_that_differ_are_noted(bench):
    script = """
    import torch, vramledger
    vramledger.install(trace="t.vlt")
    net = torch.nn.Linear(8, 8).cuda()
    for batch in %s:
        net(torch.ones(batch, 8, device="cuda")).sum().backward()
    """
    bench.dryrun(script % "(4, 64, 4)")
    assert bench.json("export", bench.folder / "t.vlt")["metadata"].get("batch_size_varies") is True
    assert any("several sizes" in note for note in bench.json("advise", bench.folder / "t.vlt", "--capacity", "1GiB")["notes"])
    bench.dryrun(script % "(4, 4)")
    assert "batch_size_varies" not in bench.json("export", bench.folder / "t.vlt")["metadata"]


ODD_MODULES = """
import random, torch, vramledger, weakref
vramledger.install(trace="t.vlt")
x = torch.ones(4, device="cuda")

class Makes(torch.nn.Module):
    def forward(self, x):
        return x.new_empty(self.bytes, dtype=torch.uint8)

class First(Makes):
    bytes = 1 << 20
class Second(Makes):
    bytes = 2 << 20
class Slotted(Makes):
    __slots__ = ("extra",)
    bytes = 3 << 20
class TwoBases(Makes, random.Random):  # the other one has a layout of its own
    bytes = 4 << 20
class Watched(Makes):
    bytes = 5 << 20
class Outer(torch.nn.Module):
    def forward(self, x):
        return [inner(x) for inner in self.inner]

firsts = [First() for _ in range(20)]
for first in firsts * 2:  # a new model makes the extension forget; at the second call it knows them all
    first(x)
places = {id(first) for first in firsts}
del first, firsts
others = []
while len(others) < 100_000 and id(second := Second()) not in places:
    others.append(second)
print("SAME PLACE", id(second) in places)
second(x), second(x)

watched = Watched()
reference = weakref.ref(watched, lambda _: print("DIED"))
outer = Outer()
outer.inner = [Slotted(), TwoBases(), watched]  # no children: each is named when its forward runs
outer(x), outer(x)
for module in outer.inner:
    module(x), module(x)
del module, watched
outer.inner.clear()
print("END")
"""


def test_modules_that_die_or_are_oddly_made_keep_their_names(bench):
    out = bench.dryrun(ODD_MODULES).stdout
    assert "SAME PLACE True" in out and out.index("DIED") < out.index("END")
    names = {n << 20: [] for n in range(1, 6)}
    for event in allocations(bench, "forward"):
        names.get(int(event["requested_bytes"]), []).append(event["text"])
    assert list(names.values()) == [(["First"] + [f"First#{n}" for n in range(2, 21)]) * 2, ["Second"] * 2, ["Slotted"] * 4, ["TwoBases"] * 4, ["Watched"] * 4]


@pytest.mark.parametrize("switch", ["1", "0"])
def test_the_outermost_module_alone_decides_between_forward_and_eval(bench, switch):
    bench.dryrun("""
    import torch, vramledger
    vramledger.install(trace="t.vlt")
    x = torch.ones(4, device="cuda")
    class Outer(torch.nn.Module):
        def __init__(self, bytes, inner=None):
            super().__init__()
            self.bytes, self.inner = bytes, inner
        def forward(self, x):
            if self.inner is not None:
                with torch.no_grad():
                    self.inner(x)
            return x.new_empty(self.bytes, dtype=torch.uint8)
    Outer(1 << 20, Outer(2 << 20).eval())(x)
    with torch.no_grad():
        whole = Outer(3 << 20, Outer(4 << 20)).eval()
        whole.inner.train()
        whole(x)
        Outer(5 << 20)(x)
    Outer(6 << 20).eval()(x)
    """, env={"VRAMLEDGER_MODULE_CALLS": switch})
    phases = {int(e["requested_bytes"]) >> 20: e["phase"] for e in events(bench) if e["kind"] == "alloc" and int(e["requested_bytes"]) >= 1 << 20}
    assert phases == {1: "forward", 2: "forward", 3: "eval", 4: "eval", 5: "forward", 6: "forward"}


def test_naming_inputs_asks_for_no_node_of_the_graph(bench):
    """A node that becomes a Python object changes the order in which the graph dies (PyTorch 2.15). The recording of operators, which asks for
    nodes while it lasts, is off."""
    out = bench.dryrun("""
    import torch, vramledger
    from torch.overrides import TorchFunctionMode
    vramledger.install(trace="t.vlt")
    class Reads(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function.__name__ == "__get__":
                seen.append(function.__self__.__name__)
            return function(*args, **(kwargs or {}))
    first, second = (torch.nn.Linear(8, 8).cuda() for _ in range(2))
    middle = first(torch.ones(4, 8, device="cuda"))
    for place in (1, 2):  # of the module's first call, and of a later one
        seen = []
        with Reads():
            second(middle)
        print("LEAF", "is_leaf" in seen, "NODE", "grad_fn" in seen)
    """, env={"VRAMLEDGER_OPERATORS": "0"}).stdout
    assert out.count("LEAF True NODE False") == 2
