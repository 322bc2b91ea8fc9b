"""Allocates tensors of marked sizes in every phase and on every thread, and prints which size means what.

    marked_sizes.py OUT      a JSON object: name -> [bytes, expected phase, expected category]
"""

import json
import sys
import threading

import torch
from torch.utils.checkpoint import checkpoint

import vramledger

marks = {}
kept = []


def mark(name, phase, category):
    """A tensor whose size no other allocation has."""
    assert name not in marks, name
    elements = 10_007 + 1_130 * len(marks)
    marks[name] = [4 * elements, phase, category]
    return torch.empty(elements, device="cuda")


def once(name, phase, category):
    """The same in code that runs many times: marked the first time only."""
    return mark(name, phase, category) if name not in marks else None


def marks_once(*arguments):
    """A hook that marks, and changes nothing."""

    def hook(_):
        once(*arguments)

    return hook


class Saves(torch.autograd.Function):
    """x, and a graph that keeps `tensor` for the backward."""

    @staticmethod
    def forward(ctx, x, tensor):
        ctx.save_for_backward(tensor)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.saved_tensors
        return gradient.clone(), None


class CustomFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        once("custom forward temporary", "forward", "temporary")
        ctx.save_for_backward(once("custom forward saved", "forward", "activation"))
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.saved_tensors
        once("custom backward temporary", "backward", "temporary")
        return gradient * 2


class Square(torch.autograd.Function):
    """Its backward is differentiable, and saves for the backward through it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        once("temporary of a create_graph backward", "backward", "temporary")
        return Saves.apply(2 * x * gradient, once("saved by a create_graph backward", "backward", "activation"))


class Layer(torch.nn.Module):
    """With `name` set: marks a temporary, and a tensor that its graph keeps, at its next forwards."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
        self.name = self.first = self.again = None

    def forward(self, x, extra=None):
        if self.name is not None:
            phase = self.again if f"{self.name} temporary, {self.first}" in marks else self.first
            once(f"{self.name} temporary, {phase}", phase, "temporary")
        return torch.relu(self.linear(x))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Layer()
        self.register_buffer("table", mark("buffer", "load", "buffer"))
        self.weight = torch.nn.Parameter(mark("parameter", "load", "parameter"))
        self.inside = False

    def forward(self, x, extra=None):
        if self.inside:
            mark("temporary inside a module", "forward", "temporary")
            return Saves.apply(self.layer(x), mark("saved inside a module", "forward", "activation"))
        return self.layer(x) + self.weight.sum() * 0


class OwnOptimizer(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure=None):
        once("own optimizer temporary", "optimizer", "temporary")
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None and not self.state[parameter]:
                self.state[parameter]["own"] = once("own optimizer state", "optimizer", "optimizer_state")
            break


def small():
    return torch.randn(8, 64, device="cuda")


def step(loss, optimizer):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def whole_step(model, optimizer):
    """The first step: everything that an ordinary training script does."""
    model.inside = True
    position = mark("input by position", "load", "input")
    keyword = mark("input by keyword", "load", "input")
    labels = mark("input of a loss function, of no module", "load", "input")
    inputs = small()
    loss = model(inputs, extra={"a": position, "b": [keyword]}).sum()
    model.inside = False
    mark("temporary after the module", "forward", "temporary")
    x = mark("leaf made in the forward and saved", "forward", "activation").requires_grad_()
    loss = loss + (x * x).sum() + CustomFunction.apply(model.weight).sum() + labels.sum()
    x.register_hook(marks_once("tensor hook temporary", "backward", "temporary"))
    x.register_post_accumulate_grad_hook(marks_once("post-accumulate hook temporary", "backward", "temporary"))
    del x, position, keyword, labels
    step(loss, optimizer)


def checkpoints(model, optimizer):
    for name, reentrant in (("non-reentrant", False), ("reentrant", True)):
        layer = model.layer
        layer.name, layer.first, layer.again = f"{name} checkpoint", "forward", "recompute"
        x = small().requires_grad_()
        step(checkpoint(layer, x, use_reentrant=reentrant).sum(), optimizer)
        layer.name = None

        def functional(x, name=name):
            phase = "recompute" if f"functional {name}, forward" in marks else "forward"
            once(f"functional {name}, {phase}", phase, "temporary")
            return (x * model.weight).sum()

        # A module before it, so that this is still a forward of a program of modules.
        x = model(small()).sum()
        step(checkpoint(functional, x, use_reentrant=reentrant), optimizer)


def double_backward(model, optimizer):
    x = small().requires_grad_()
    out = model(Square.apply(x)).sum()
    (first,) = torch.autograd.grad(out, [x], create_graph=True)
    first.register_hook(marks_once("hook in the second backward", "backward", "temporary"))
    (first * first).sum().backward()
    optimizer.zero_grad()


def backward_in_a_thread(model, optimizer):
    x = small().requires_grad_()
    loss = model(x).sum()
    x.register_hook(marks_once("hook of a backward in a thread", "backward", "temporary"))

    def run():
        mark("forward work in a user's thread", "forward", "temporary")
        loss.backward()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def closures(model):
    optimizer = torch.optim.LBFGS(model.layer.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = model(small()).sum()
        once("forward in a closure", "forward", "temporary")
        loss.backward()
        once("after the backward in a closure", "optimizer", "temporary")
        return loss

    optimizer.step(closure)
    optimizer.zero_grad()


def evaluation(model):
    model.eval()
    with torch.no_grad():
        model.layer.name, model.layer.first = "no_grad evaluation", "eval"
        model(small())
        mark("between evaluations", "idle", "temporary")
    with torch.inference_mode():
        model.layer.name, model.layer.first = "inference_mode evaluation", "eval"
        model(small())
    model.layer.name = None
    model.train()


def scopes(model, optimizer):
    with vramledger.phase("save"):
        mark("in a save scope", "save", "temporary")
    with vramledger.phase("data"):
        kept.append(mark("in a data scope", "data", "input"))
    with vramledger.phase("my own words"):
        mark("in a scope of the user's own", "idle", "temporary")
    with vramledger.phase("eval"):
        mark("in an eval scope", "eval", "temporary")
    x = mark("batch of a later step", "idle", "input")
    loss = model(small(), extra=x).sum()
    with vramledger.phase("communication"):
        kept.append(mark("in a communication scope", "communication", "communication"))
    step(loss, optimizer)


def functional():
    """No module: parameters in a list. The first round tells that the program works so."""
    weights = [torch.randn(64, 64, device="cuda", requires_grad=True) for _ in range(2)]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    for turn in range(3):
        x = mark("functional input", "idle", "input") if turn == 2 else None
        y = small() @ weights[0]
        if turn == 2:
            mark("functional temporary", "forward", "temporary")
            z = Saves.apply(y, mark("functional activation", "forward", "activation")).sum() + x.sum()
        else:
            z = y.sum()
        del x
        loss = torch.relu(y @ weights[1]).sum() + z
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main():
    model = Model().cuda()
    kept.append(mark("kept from the start, no tensor of a module", "load", "buffer"))
    mark("temporary while loading", "load", "temporary")
    optimizer = OwnOptimizer(model.parameters())
    whole_step(model, optimizer)
    checkpoints(model, optimizer)
    double_backward(model, optimizer)
    backward_in_a_thread(model, optimizer)
    closures(model)
    evaluation(model)
    scopes(model, optimizer)
    functional()
    with open(sys.argv[1], "w") as file:
        json.dump(marks, file)


if __name__ == "__main__":
    main()
