"""Where each tensor of a marked size is found: the phase that made it, and what the rules say it is."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("marked_sizes.py")


@pytest.fixture(scope="module")
def found(shared_bench):
    """name -> (expected, all found of this size), as (phase, category)."""
    trace, out = shared_bench.folder / "marks.vlt", shared_bench.folder / "marks.json"
    shared_bench.dryrun(SCRIPT, out, allocator="plugin", trace=trace)
    by_size = defaultdict(list)
    for event in json.loads(shared_bench.tool("export", trace, "--format", "json").stdout)["events"]:
        if event["kind"] == "alloc":
            by_size[event["requested_bytes"]].append((event["phase"], event["category"]))
    marks = json.loads(out.read_text())
    return {name: ((phase, category), by_size[size]) for name, (size, phase, category) in marks.items()}


def test_every_mark_is_where_it_belongs(found):
    # The first of its size is the mark; some have gradients of the same size.
    wrong = {name: f"{expected} expected, {got[0]} found" for name, (expected, got) in found.items() if got[0] != expected}
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())
    assert len(found) > 40


def test_gradients_of_marked_tensors(found):
    for name in ("parameter", "leaf made in the forward and saved"):
        assert ("backward", "gradient") in found[name][1], name
