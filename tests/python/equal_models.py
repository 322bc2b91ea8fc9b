"""Trains four models, three steps each, one after the other in one process, and writes what torch.cuda says of memory after each.

    equal_models.py MODE OUT      MODE: native (PyTorch's own allocator), torch or plugin (ours; PyTorch takes no snapshot of a plug-in)
"""

import json
import runpy
import sys
from pathlib import Path

import torch
from torch.utils.checkpoint import checkpoint

EXAMPLES = Path(__file__).resolve().parents[2] / "tools" / "examples"


class Block(torch.nn.Module):
    """A decoder layer of the Llama kind: RMS norm, grouped queries, SwiGLU."""

    def __init__(self, width=512, heads=8, key_heads=2):
        super().__init__()
        self.heads, self.key_heads, self.size = heads, key_heads, width // heads
        self.norm1, self.norm2 = torch.nn.RMSNorm(width), torch.nn.RMSNorm(width)
        self.q = torch.nn.Linear(width, width, bias=False)
        self.kv = torch.nn.Linear(width, 2 * key_heads * self.size, bias=False)
        self.o = torch.nn.Linear(width, width, bias=False)
        self.gate_up = torch.nn.Linear(width, 2 * 1408, bias=False)
        self.down = torch.nn.Linear(1408, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        y = self.norm1(x)
        q = self.q(y).view(batch, length, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(y).view(batch, length, 2, self.key_heads, self.size).permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, width))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(torch.nn.functional.silu(gate) * up)


def llama():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(8000, 512)
            self.layers = torch.nn.ModuleList(Block() for _ in range(4))
            self.head = torch.nn.Linear(512, 8000, bias=False)

        def forward(self, ids):
            x = self.embedding(ids)
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            return self.head(x)

    model = Model().to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        ids = torch.zeros(4, 512, dtype=torch.long).cuda()
        loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def example(name, *arguments):
    sys.argv = [name, *arguments]
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def look(with_segments):
    segments = with_segments and [[s["address"], s["total_size"], s["segment_type"], s["is_expandable"], s["stream"],
                 [[b["address"], b["size"], b["state"]] for b in s["blocks"]]] for s in torch.cuda.memory_snapshot()]
    return {"stats": dict(torch.cuda.memory_stats()), "segments": segments}


if __name__ == "__main__":
    mode, out = sys.argv[1:]
    if mode != "native":
        import vramledger

        vramledger.install(mode=mode)
    seen = {}
    for name, train in (("llama", llama), ("bert", lambda: example("bert.py", "--batch", "4")),
                        ("resnet50", lambda: example("resnet50.py", "--batch", "8")), ("dcgan", lambda: example("dcgan.py", "--batch", "16"))):
        train()
        seen[name] = look(mode != "plugin")
        # Some models start from a warm cache, some from an empty one.
        if name == "bert":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.reset_accumulated_memory_stats()
    Path(out).write_text(json.dumps(seen))
