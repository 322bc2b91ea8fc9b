"""Trains with PyTorch's native allocator and writes its history in the replay format, with its final statistics.

    python3 record_native.py WORKLOAD OUT.txt RUN.json [OPERATIONS]

WORKLOAD: bert, resnet, streams, churn, oom. Meant for a GPU or the virtual device; `replay_history OUT.txt RUN.json` then says
whether the core repeats it. Allocator settings come from PYTORCH_CUDA_ALLOC_CONF.
"""

import json
import os
import pathlib
import random
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "data" / "replay"))
import from_snapshot  # noqa: E402


def bert():
    import transformers

    config = transformers.BertConfig()
    model = transformers.BertForMaskedLM(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for batch in (8, 8, 5, 8):
        ids = torch.zeros(batch, 128, dtype=torch.long, device="cuda")
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def resnet():
    import torchvision

    model = torchvision.models.resnet50().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in (8, 16, 8):
        with torch.autocast("cuda"):
            out = model(torch.zeros(batch, 3, 224, 224, device="cuda"))
        out.float().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.empty_cache()
    with torch.no_grad():
        model(torch.zeros(4, 3, 160, 160, device="cuda"))


def streams(operations=4000):
    """Two streams that hand tensors to each other with record_stream."""
    side = torch.cuda.Stream()
    main = torch.cuda.current_stream()
    rng = random.Random(1)
    held = []
    for i in range(operations):
        stream, other = (main, side) if rng.random() < 0.6 else (side, main)
        with torch.cuda.stream(stream):
            size = rng.choice([512, 4096, 100_000, 1 << 20, 3 << 20, 15 << 20])
            x = torch.empty(rng.randint(size // 2, size), dtype=torch.uint8, device="cuda")
        if rng.random() < 0.3:
            x.record_stream(other)
        held.append(x)
        while len(held) > rng.randint(1, 60):
            held.pop(rng.randrange(len(held)))
        if i % 1000 == 999:
            torch.cuda.empty_cache()


def churn(operations=20000, limit=1 << 40):
    """Sizes of every kind, long and short lives."""
    rng = random.Random(2)
    held = []
    total = 0
    for _ in range(operations):
        size = int(2 ** rng.uniform(0, 26))
        try:
            held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            total += size
        except torch.OutOfMemoryError:
            total -= sum(t.numel() for t in held[::2])
            del held[::2]
        while total > limit or len(held) > 400:
            total -= held.pop(rng.randrange(len(held))).numel()


def oom(operations=20000):
    """The same, to be run on a device that is too small for it."""
    churn(operations)


def main():
    workload, history, run = sys.argv[1:4]
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info()
    torch.cuda.memory._record_memory_history(context=None, stacks="python", max_entries=10**7)
    globals()[workload](*map(int, sys.argv[4:5]))
    torch.cuda.synchronize()
    snapshot = torch.cuda.memory._snapshot()
    with open(history, "w") as f:
        f.write("\n".join(from_snapshot.lines(snapshot["device_traces"][0])) + "\n")
    facts = {
        "settings": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
        "capacity_bytes": total,
        "used_elsewhere_bytes": total - free,
        "statistics": torch.cuda.memory_stats(),
    }
    with open(run, "w") as f:
        json.dump(facts, f, indent=1, sort_keys=True)


if __name__ == "__main__":
    main()
