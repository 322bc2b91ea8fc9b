"""A model recorded on a real GPU, repeated on the virtual device under PyTorch's own allocator: every request's size, in
order. The recordings' source and licence: tests/data/truth/README.md."""

import gzip

import pytest
import virtual_device

SCRIPT = virtual_device.ROOT / "tests" / "truth" / "medium_lm.py"
DATA = virtual_device.ROOT / "tests" / "data" / "truth"


@pytest.mark.parametrize("context, pattern, requests", [
    (128, "training", 6526), (256, "training", 6624), (128, "inference", 1280), (1024, "inference", 1280)])
def test_every_request_is_the_recorded_one(context, pattern, requests):
    with gzip.open(DATA / f"medium_ctx{context}_{pattern}.sizes.gz", "rt") as file:
        recorded = [int(line) for line in file]
    result = virtual_device.run(SCRIPT, "--context", context, "--pattern", pattern, device="rtx-4090")
    made = [int(line) for line in result.stdout.split()]
    assert len(recorded) == requests
    different = [i for i, (a, b) in enumerate(zip(recorded, made)) if a != b]
    assert not different, f"first difference at request {different[0]}: {recorded[different[0]]} recorded, {made[different[0]]} made"
    assert len(made) == len(recorded)
