"""A model recorded on a real GPU, repeated on the virtual device under PyTorch's own allocator: every request's size, in
order. The recordings' source and licence: tests/data/truth/README.md."""

import gzip

import pytest
import virtual_device
from conftest import KEEPING, KEPT_WORKSPACES

SCRIPT = virtual_device.ROOT / "tests" / "truth" / "medium_lm.py"
DATA = virtual_device.ROOT / "tests" / "data" / "truth"
WORKSPACE = 8_519_680   # cuBLAS's below compute capability 9
FORWARD_PRODUCTS = 24 * (4 + 2 + 3) + 1   # projections, attention's two and the gated layer's of each block, the head


@pytest.mark.parametrize("kept", KEEPING)
@pytest.mark.parametrize("context, pattern, requests", [
    (128, "training", 6526), (256, "training", 6624), (128, "inference", 1280), (1024, "inference", 1280)])
def test_every_request_is_the_recorded_one(context, pattern, requests, kept):
    with gzip.open(DATA / f"medium_ctx{context}_{pattern}.sizes.gz", "rt") as file:
        recorded = [int(line) for line in file]
    result = virtual_device.run(SCRIPT, "--context", context, "--pattern", pattern, device="rtx-4090", env=KEPT_WORKSPACES if kept else {})
    made = [int(line) for line in result.stdout.split()]
    if not kept:   # then each product asks for one, two more of them in the backward of each
        assert made.count(WORKSPACE) == (3 if pattern == "training" else 1) * FORWARD_PRODUCTS
        made = [size for size in made if size != WORKSPACE]
    assert len(recorded) == requests
    different = [i for i, (a, b) in enumerate(zip(recorded, made)) if a != b]
    assert not different, f"first difference at request {different[0]}: {recorded[different[0]]} recorded, {made[different[0]]} made"
    assert len(made) == len(recorded)
