"""Gradients get the same names however they are looked at: all at once, by the library for modes torch and observe, or one by one from Python."""

import pytest
from test_modules import events

SCRIPT = """
import sys, torch, vramledger
from vramledger import _graph
from vramledger._library import LibraryError
if sys.argv[2] == "python":
    def refuse(_):
        raise LibraryError("not here")
    _graph.Graph = refuse
vramledger.install(trace="t.vlt", mode=sys.argv[1])
assert (vramledger._install._hooks.graph is None) == (sys.argv[2] == "python")

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(100, 16, sparse=True)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(40))
    def forward(self, index):
        x = self.table(index) + self.on_host.to(index.device)
        for layer in self.layers[::2]:  # the others have no gradients
            x = layer(x)
        return x

net = Net().cuda()
net.on_host = torch.nn.Parameter(torch.ones(16))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def step():
    net(torch.zeros(4, dtype=torch.long, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
step()
# One of the optimizer's parameters dies, and its place is taken by another.
parameters = optimizer.param_groups[0]["params"]
place = next(i for i, p in enumerate(parameters) if p is net.layers[4].weight)
net.layers[4].weight = parameters[place] = torch.nn.Parameter(torch.ones(16, 16, device="cuda"))
step()
step()
"""


def gradients_named(bench, mode, way):
    """Of each step: the names given, in alphabetical order."""
    bench.dryrun(bench.script(SCRIPT), mode, way)
    steps = [[]]
    for event in events(bench):
        if event["kind"] == "step":
            steps.append([])
        elif event["kind"] == "name" and event["text"].endswith(".grad"):
            steps[-1].append(event["text"])
    return [sorted(names) for names in steps]


@pytest.mark.parametrize("mode", ["torch", "plugin"])
def test_gradients_are_named_alike_by_the_library_and_from_python(bench, mode):
    first, second, third, rest = gradients_named(bench, mode, "library")
    layers = [f"Net.layers.{n}.{part}.grad" for n in range(0, 40, 2) for part in ("bias", "weight")]
    assert first == sorted(layers + ["Net.table.weight.grad"] * 2)  # a sparse one's indices and values
    # The one of the dead is nobody's, and who took its place was not asked for.
    assert second == third == [name for name in first if name != "Net.layers.4.weight.grad"]
    assert rest == []
    assert gradients_named(bench, mode, "python") == [first, second, third, rest]
