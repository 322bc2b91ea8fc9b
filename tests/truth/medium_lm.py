"""A language model whose training and inference steps make the same allocation requests, in the same order, as a public
recording from a real GPU (tests/data/truth/README.md). Written for this project: the sizes are the recording's, the
code is ours. Weights are left uninitialised: no value matters to a request.

    python medium_lm.py --context 128 --pattern training     prints one request size in bytes per line
"""

import argparse
import math
import sys

import torch
from torch import nn

VOCABULARY, LAYERS, WIDTH, HEADS, INNER, BATCH = 10_000, 24, 1024, 16, 4096, 4


def weight(*shape):
    return nn.Parameter(torch.empty(*shape, device="cuda"))


class Projection(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = weight(outputs, inputs)

    def forward(self, x):
        return torch.einsum("bsi,oi->bso", x, self.weight)


class Norm(nn.Module):
    """Root mean square norm, in single precision whatever comes in."""

    def __init__(self):
        super().__init__()
        self.weight = weight(WIDTH)

    def forward(self, x):
        given = x.dtype
        x = x.to(torch.float32)
        scale = (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()
        x = x * scale
        return (self.weight * x).to(given)


class Rotation(nn.Module):
    """Rotary positions: pairs of neighbouring channels are turned by an angle that grows with the position."""

    def __init__(self, context, channels):
        super().__init__()
        speeds = 10_000.0 ** -(torch.arange(0, channels, 2) / channels)
        angles = torch.arange(context)[:, None] * speeds[None, :]
        self.register_buffer("table", torch.stack((angles.cos(), angles.sin())).cuda(), persistent=False)

    def forward(self, x):
        even, odd = x.unflatten(-1, (-1, 2)).movedim(-1, 0).unbind(0)
        cos, sin = self.table[:, : x.shape[-2]].unbind(0)
        turned_even = cos * even - sin * odd
        turned_odd = sin * even + cos * odd
        return torch.cat((turned_even, turned_odd), dim=-1)


def softmax(x):
    shifted = x - x.max(dim=-1, keepdim=True).values
    exponentials = shifted.exp()
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


class Attention(nn.Module):
    def __init__(self, rotation):
        super().__init__()
        self.query, self.key, self.value, self.output = (Projection(WIDTH, WIDTH) for _ in range(4))
        self.rotation = rotation

    def forward(self, x):
        # All projections before any split: the order in which backward frees and asks follows the order made here.
        projected = [p(x) for p in (self.query, self.key, self.value)]
        query, key, value = (p.unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in projected)
        query, key = self.rotation(query), self.rotation(key)
        positions = torch.arange(x.shape[1], device=x.device)
        visible = positions[:, None] >= positions[None, :]
        scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / math.sqrt(WIDTH // HEADS)
        shares = softmax(torch.where(visible, scores, float("-inf")))
        mixed = torch.einsum("bhqk,bhkd->bhqd", shares, value)
        return self.output(mixed.transpose(1, 2).reshape(*x.shape))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.value, self.output = Projection(WIDTH, INNER), Projection(WIDTH, INNER), Projection(INNER, WIDTH)

    def forward(self, x):
        gate = self.gate(x)
        return self.output(gate * torch.sigmoid(gate) * self.value(x))


class Block(nn.Module):
    def __init__(self, rotation):
        super().__init__()
        self.attention, self.inner = Attention(rotation), Gated()
        self.before_attention, self.before_inner = Norm(), Norm()

    def forward(self, x):
        x = x + self.attention(self.before_attention(x))
        return x + self.inner(self.before_inner(x))


class Model(nn.Module):
    def __init__(self, context):
        super().__init__()
        self.tokens = weight(VOCABULARY, WIDTH)
        rotation = Rotation(context, WIDTH // HEADS)
        self.blocks = nn.ModuleList(Block(rotation) for _ in range(LAYERS))
        self.norm, self.head = Norm(), Projection(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.tokens[tokens, :]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def cross_entropy(scores, targets):
    shifted = scores - scores.max(dim=-1, keepdim=True).values
    negative = -(shifted - shifted.exp().sum(dim=-1, keepdim=True).log())
    return negative.gather(-1, targets[..., None]).mean()


class AdamW(torch.optim.Optimizer):
    """One parameter at a time, every intermediate a tensor of its own."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-3, "decay": 0.01, "eps": 1e-8})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                count = state.get("count", 0) + 1
                p.sub_(group["lr"] * group["decay"] * p)
                mean = state.get("mean", torch.zeros_like(p))
                square = state.get("square", torch.zeros_like(p))
                mean = 0.9 * mean + (1 - 0.9) * p.grad
                square = 0.999 * square + (1 - 0.999) * p.grad**2
                rate = group["lr"] * math.sqrt(1 - 0.999**count) / (1 - 0.9**count)
                p.sub_(rate * mean / (square.sqrt() + group["eps"]))
                state.update(count=count, mean=mean, square=square)


def request_sizes(context, pattern, warmup):
    model = Model(context)
    optimizer = AdamW(model.parameters())
    inputs = torch.randint(0, VOCABULARY, (warmup + 1, BATCH, context), device="cuda")
    targets = torch.randint(0, VOCABULARY, (warmup + 1, BATCH, context), device="cuda")

    def step(i):
        if pattern == "inference":
            model(inputs[i])
        else:
            cross_entropy(model(inputs[i]), targets[i]).backward()
            optimizer.step()

    with torch.inference_mode(pattern == "inference"):
        for i in range(warmup):
            step(i)
            optimizer.zero_grad()
        torch.cuda.synchronize()
        torch.cuda.memory._record_memory_history(max_entries=1_000_000, context=None)
        step(warmup)
        torch.cuda.synchronize()
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
    return [event["size"] for event in trace if event["action"] == "alloc"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--pattern", choices=("training", "inference"), default="training")
    parser.add_argument("--warmup", type=int, default=2)
    arguments = parser.parse_args()
    sys.stdout.write("".join(f"{s}\n" for s in request_sizes(arguments.context, arguments.pattern, arguments.warmup)))
    sys.stdout.flush()
    print("reserved", torch.cuda.memory_reserved() >> 20, "MiB", file=sys.stderr)


if __name__ == "__main__":
    main()
