"""Makes random requests of few sizes on two streams, so that many free blocks are equal, and writes every address and the statistics.

    random_requests.py MODE OUT      MODE: native (PyTorch's own allocator) or torch (ours); both must write the same
"""

import json
import random
import sys
from pathlib import Path

import torch

MODE, OUT = sys.argv[1:]
if MODE != "native":
    import vramledger

    vramledger.install(mode=MODE, hooks=False)

KIB = 1 << 10
SIZES = [512, 3 * KIB, 64 * KIB, 700 * KIB, 1100 * KIB, 3 << 20, 3 << 20, 9 << 20, 11 << 20, 40 << 20]
chance = random.Random(20261129)
side = torch.cuda.Stream()
live, addresses = [], []
for step in range(6000):
    if live and chance.random() < (0.45 if step % 1000 < 600 else 0.6):
        live[chance.randrange(len(live))] = live[-1]
        live.pop()
    else:
        with torch.cuda.stream(side if chance.random() < 0.2 else torch.cuda.current_stream()):
            live.append(torch.empty(chance.choice(SIZES), dtype=torch.uint8, device="cuda"))
        addresses.append(live[-1].data_ptr())
    if step % 1500 == 1499:
        torch.cuda.empty_cache()
Path(OUT).write_text(json.dumps({"addresses": addresses, "stats": {k: v for k, v in torch.cuda.memory_stats().items()}}))
