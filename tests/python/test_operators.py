"""Lists of operators: recorded without a run, for what the matrix of scripts has not, and the table against PyTorch's own definitions."""

import collections
import re

import pytest
import torch
import torchgen
from conftest import ROOT
from torchgen.packaged.autograd.load_derivatives import load_derivatives

from vramledger import _operator_key, _operator_recorder, _operators

TABLE = ROOT / "tools" / "estimate" / "operators_table.cc"


def test_a_list_without_a_run():
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
        x = torch.empty(4, 64)
    found = _operators.record(model, (x,))
    names = [found["names"][operator[0]] for operator in found["operators"]]
    assert names == ["aten::addmm", "aten::gelu", "aten::addmm"]
    assert [found["modules"][operator[1]] for operator in found["operators"]] == [f"Sequential.{i}" for i in range(3)]
    made = [found["storages"][found["tensors"][operator[5][0]][0]] for operator in found["operators"]]
    assert made == [[4 * 256 * 4, 0], [4 * 256 * 4, 0], [4 * 8 * 4, 0]]
    weights = sorted(size for size, role in found["storages"] if role == _operator_recorder.PARAMETER)
    assert weights == sorted(4 * n for n in (64 * 256, 256, 256 * 8, 8))
    assert found["held"] == [found["tensors"][found["operators"][-1][5][0]][0]]
    # Off again: nothing is seen any more, and a second list is like the first.
    assert _operator_key.active is None
    assert _operators.record(model, (x,)) == found


def test_parameters_can_be_made_while_recording():
    class Late(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8, 8))

        def forward(self, x):
            self.more = torch.nn.Parameter(torch.ones(8, 8))
            return x @ self.weight @ self.more

    found = _operators.record(Late(), (torch.ones(2, 8),))
    assert [role for size, role in found["storages"] if size == 256] == [_operator_recorder.PARAMETER] * 2

def test_no_state_of_functorch_is_made(bench):
    """Autograd would copy it for every node of every backward, of all later steps too."""
    out = bench.dryrun("""
    import ctypes, os, torch, vramledger

    vramledger.install(trace="t.vlt", mode="torch")
    library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))
    accessor = library._ZN2at9functorch20functorchTLSAccessorEv
    accessor.restype = ctypes.POINTER(ctypes.c_void_p)  # to a shared pointer, whose first word is the address
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(4, 8, device="cuda")).sum().backward()
        optimizer.step()
    print("made:", accessor()[0] is not None)
    torch._C._functorch.peek_interpreter_stack()
    print("made by a look at its stack:", accessor()[0] is not None)
    """)
    assert "made: False" in out.stdout
    assert "made by a look at its stack: True" in out.stdout


def test_what_runs_within_a_transform_is_not_recorded(bench):
    out = bench.dryrun("""
    import torch, vramledger
    from vramledger import _operators

    vramledger.install(trace="t.vlt", mode="torch")
    model = torch.nn.Linear(8, 8).cuda()
    seen = []
    torch.func.vmap(lambda x: (seen.append(_operators._may_record(model)), x)[1])(torch.ones(2, device="cuda"))
    print("within:", seen, "outside:", _operators._may_record(model))
    """)
    assert "within: [False] outside: True" in out.stdout


def test_the_recorder_is_gone_after_a_failed_recording(bench):
    """Whether the recorder itself fails, or the forward that it records."""
    out = bench.dryrun("""
    import torch, vramledger
    from vramledger import _operator_key, _operators

    vramledger.install(trace="t.vlt", mode="plugin")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(4, 8, device="cuda")

    def fails(*_):
        raise RuntimeError("made to fail")

    kept, _operators.Recorder._after = _operators.Recorder._after, fails
    for _ in range(2):
        model(x).sum().backward()
        optimizer.step()
    print("RUN", _operator_key.active, _operators._recorder, torch.nn.modules.module._global_forward_pre_hooks)
    try:
        _operators.record(model, (x,))
    except RuntimeError as error:
        print("SAID", error)
    print("LIST", _operator_key.active, torch.nn.modules.module._global_forward_pre_hooks)
    _operators.Recorder._after = kept
    try:
        _operators.record(model, (torch.ones(4, 9, device="cuda"),))
    except RuntimeError as error:
        print("FORWARD", _operator_key.active, torch.nn.modules.module._global_forward_pre_hooks)
    print("AGAIN", len(_operators.record(model, (x,))["operators"]))
    """)
    assert "operators are not recorded, and the activations have no analytic column: RuntimeError: made to fail" in out.stderr
    for line in ("RUN None None OrderedDict()", "SAID the operators of Sequential cannot be recorded: RuntimeError: made to fail",
                 "LIST None OrderedDict()", "FORWARD None OrderedDict()", "AGAIN 2"):
        assert line in out.stdout, out.stdout


SCRIPT = """
    import sys

    import torch
    import vramledger
    from torch import nn
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, CheckpointPolicy

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            square = x * x
            ctx.save_for_backward(x, square)
            return square * x

        @staticmethod
        def backward(ctx, grad):
            return 3 * ctx.saved_tensors[1] * grad

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down, self.out = nn.Linear(64, 256), nn.Linear(256, 64), nn.Linear(64, 64)
            self.side = nn.Linear(64, 512)

        def forward(self, x):
            a = Cube.apply(self.up(x))
            b = nn.functional.hardswish(self.down(a), inplace=True)
            with torch.autograd.graph.save_on_cpu():
                c = torch.tanh(b) * torch.sigmoid(b)
            self.side(c).exp()              # nothing depends on it
            d = checkpoint(lambda t: self.out(t).exp().sin(), c, use_reentrant=False)
            if selective:
                def policy(context, operator, *args, **kwargs):
                    return CheckpointPolicy.MUST_SAVE if operator is torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE
                d = checkpoint(lambda t: self.out(t).exp(), d, use_reentrant=False,
                               context_fn=lambda: create_selective_checkpoint_contexts(policy))
            return torch.cat([c.T @ d, a.T @ d]).cumsum(0)

    selective = "selective" in sys.argv
    vramledger.install(trace=sys.argv[1], mode="plugin")
    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(torch.randn(64, 64).cuda()).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_functions_regions_and_what_is_dropped(bench):
    script = bench.script(SCRIPT)
    bench.dryrun(script, bench.folder / "t.vlt")
    (check,) = bench.json("reconcile", bench.folder / "t.vlt")["activation_checks"]
    assert check["not_covered"] == {}
    assert check["analytic_bytes"] == check["traced_bytes"], bench.tool("reconcile", bench.folder / "t.vlt").stdout


def test_what_is_not_known_is_named(bench):
    script = bench.script(SCRIPT)
    bench.dryrun(script, bench.folder / "t.vlt", "selective")
    (check,) = bench.json("reconcile", bench.folder / "t.vlt")["activation_checks"]
    assert list(check["not_covered"]) == ["selective checkpointing"]


# ---- the table, against the definitions in the installed PyTorch ----


def definitions():
    folder = next(iter(torchgen.__path__)) + "/packaged"
    functions, _ = load_derivatives(f"{folder}/autograd/derivatives.yaml", f"{folder}/ATen/native/native_functions.yaml", f"{folder}/ATen/native/tags.yaml")
    return {str(info.func.func.name): info for by_key in functions.values() for info in list(by_key.values())[:1]}


def saved_by(info):
    """The tensors that the generated autograd code saves, with its conditions, as tokens of the table."""
    function = info.func.func
    arguments = list(function.arguments.flat_all)
    tensors = [a.name for a in arguments if "Tensor" in str(a.type)]
    differentiable = [a.name for a in arguments if any(a.name in d.var_names for d in info.derivatives)]
    has_list = any("Tensor" in str(a.type) and "[]" in str(a.type) for a in arguments)
    outputs = {f"result{i}": i for i in range(len(function.returns))} | {"result": 0}
    outputs |= {r.name: i for i, r in enumerate(function.returns) if r.name}
    users = collections.defaultdict(list)
    for derivative in info.derivatives:
        for saved in (*derivative.saved_inputs, *derivative.saved_outputs):
            name = getattr(saved.nctype.name, "name", saved.nctype.name)
            kind = str(saved.nctype.type)
            if "name='Tensor'" in kind or "TensorList" in kind:
                users[name, kind.startswith("BaseCType")].append(derivative)
    tokens = []
    for (name, plain), derivatives in users.items():
        token = f"i{tensors.index(name)}" if name in tensors else f"o{outputs[name]}"
        if not has_list and len(differentiable) > 1 and plain and len(derivatives) == 1:
            names = derivatives[0].var_names
            wrapped = re.search(rf"wrap_opt_if\({name},(.*?)\)", derivatives[0].formula)
            if len(names) == 1:
                token += f"?{tensors.index(names[0])}"
            elif wrapped:
                token += "?" + ",".join(str(tensors.index(differentiable[int(n)])) for n in re.findall(r"grad_input_mask\[(\d+)\]", wrapped[0]))
        tokens.append(token)
    return " ".join(sorted(tokens))


def table():
    rows = {}
    for saved, names in re.findall(r'\{"([^"]*)",\s*((?:"[^"]*"\s*)+)\}', TABLE.read_text()):
        rows |= {name: saved for name in "".join(re.findall(r'"([^"]*)"', names)).split()}
    return rows


@pytest.mark.skipif(not torch.__version__.startswith("2.11"), reason="the table is that of PyTorch 2.11")
def test_the_table_is_pytorchs_own():
    known, rows = definitions(), table()
    assert len(rows) > 300
    wrong, compared = {}, set()
    for name, info in known.items():
        base = name.partition(".")[0]
        row = rows.get(name, rows.get(base))
        if row is None or not info.derivatives:
            continue
        compared.add(base)
        if saved_by(info) != " ".join(sorted(row.split())):
            wrong[name] = (saved_by(info), row)
    assert not wrong
    assert len(compared) > 220
