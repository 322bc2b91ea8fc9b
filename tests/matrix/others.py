"""Recommenders, towers, distributed training, and what becomes of names."""

import copy
import gc
import io
import os

import torch
from tally import Tally, train
from torch import nn
from torch.distributed.fsdp import fully_shard


class Recommender(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.users, self.items = nn.Embedding(20_000, 32, sparse=sparse), nn.Embedding(50_000, 32, sparse=sparse)
        self.sparse = sparse
        if not sparse:
            self.top = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, users, items):
        a, b = self.users(users), self.items(items)
        return (a * b).sum(-1) if self.sparse else self.top(torch.cat([a, b], -1))


def pairs():
    return torch.randint(0, 20_000, (256,)).cuda(), torch.randint(0, 50_000, (256,)).cuda()


def recommender():
    model = Recommender(sparse=False).cuda()
    return train(model, torch.optim.Adam(model.parameters()), pairs, lambda out: out.mean())


def sparse_recommender():
    model = Recommender(sparse=True).cuda()
    return train(model, torch.optim.SparseAdam(model.parameters()), pairs, lambda out: out.mean())


class Tower(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, 64))

    def forward(self, x):
        return nn.functional.normalize(self.layers(x), dim=-1)


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = Tower(96), Tower(160)
        self.scale = nn.Parameter(torch.ones([]))

    def forward(self, a, b):
        return self.scale * self.left(a) @ self.right(b).T


def contrastive(logits):
    labels = torch.arange(logits.shape[0], device=logits.device)
    return nn.functional.cross_entropy(logits, labels) + nn.functional.cross_entropy(logits.T, labels)


def both_sides():
    return torch.randn(32, 96, device="cuda"), torch.randn(32, 160, device="cuda")


def two_towers():
    model = TwoTowers().cuda()
    return train(model, torch.optim.AdamW(model.parameters()), both_sides, contrastive)


def distributed(**options):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
    model = TwoTowers().cuda()
    wrapped = nn.parallel.DistributedDataParallel(model, device_ids=[0], **options)
    tally = train(model, torch.optim.AdamW(wrapped.parameters()), both_sides, contrastive, called=wrapped)
    torch.distributed.destroy_process_group()
    return tally


def ddp():
    return distributed()


def ddp_views():
    return distributed(gradient_as_bucket_view=True)


def fsdp():
    """Fully sharded on one rank: parameters are gathered for each block, gradients reduced."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 1024), nn.GELU(), nn.Linear(1024, 64)) for _ in range(4))).cuda()
    for block in model:
        fully_shard(block)
    fully_shard(model)
    tally = train(model, torch.optim.AdamW(model.parameters()), lambda: (torch.randn(32, 64, device="cuda"),), lambda out: out.pow(2).mean())
    torch.distributed.destroy_process_group()
    return tally


def shared_layers():
    """Two models with one trunk, one optimizer; a model of before is gone, and a copy was loaded and moved."""
    for _ in range(3):
        before = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 48)).cuda()
        before(torch.randn(4, 64, device="cuda"))
        del before
        gc.collect()
    trunk = nn.Sequential(nn.Linear(64, 128), nn.ReLU())
    first, second = nn.Sequential(trunk, nn.Linear(128, 8)), nn.Sequential(trunk, nn.Linear(128, 24))
    first.cuda(), second.cuda()
    copied = copy.deepcopy(first)
    first.load_state_dict(copied.state_dict())
    first.to(torch.float64).to(torch.float32)
    del copied
    gc.collect()
    parameters = {id(p): p for model in (first, second) for p in model.parameters()}
    optimizer = torch.optim.AdamW(parameters.values())
    tally = Tally([first, second], [optimizer])
    for _ in range(3):
        x = torch.randn(16, 64, device="cuda")
        (first(x).mean() + second(x).mean()).backward()
        tally.look()
        optimizer.step()
        tally.look()
        optimizer.zero_grad()
    return tally


def moved_and_reloaded():
    """Layers that learn their shapes late; after a step all goes to the host, comes back in double precision, and states are loaded."""
    model = nn.Sequential(nn.LazyLinear(128), nn.ReLU(), nn.LazyLinear(16)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    tally = Tally([model], [optimizer])
    for step in range(3):
        x = torch.randn(16, 64, device="cuda", dtype=torch.float64 if step else torch.float32)
        model(x).mean().backward()
        tally.look()
        optimizer.step()
        tally.look()
        optimizer.zero_grad()
        if step == 0:
            saved = io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
            optimizer.state.clear()
            model.cpu().double().cuda()
            saved.seek(0)
            loaded = torch.load(saved, map_location="cpu")
            model.load_state_dict({k: v.double() for k, v in loaded["model"].items()})
            optimizer.load_state_dict(loaded["optimizer"])
    return tally


def lbfgs():
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 8)).cuda()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, history_size=4)
    tally = Tally([model], [optimizer])
    for _ in range(3):
        x = torch.randn(16, 64, device="cuda")

        def closure(x=x):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        tally.look()
    return tally


PROCESS_GROUPS = ("two towers, DDP", "two towers, DDP views", "blocks, FSDP")
CASES = {
    "recommender": ("large embeddings, Adam", recommender),
    "recommender, sparse": ("sparse gradients, SparseAdam", sparse_recommender),
    "two towers": ("contrastive loss, AdamW", two_towers),
    "two towers, DDP": ("DDP of one process, AdamW", ddp),
    "two towers, DDP views": ("DDP of one process, gradients in its buckets, AdamW", ddp_views),
    "blocks, FSDP": ("fully_shard on one rank, AdamW", fsdp),
    "shared layers": ("two models with one trunk, after models that are gone; AdamW", shared_layers),
    "moved and reloaded": ("lazy layers, to the host and back in double precision, states loaded; AdamW", moved_and_reloaded),
    "LBFGS": ("closures", lbfgs),
}
