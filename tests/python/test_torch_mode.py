"""Mode torch: our allocator as PyTorch's own kind, against PyTorch's allocator and against PyTorch's features."""

import json
from pathlib import Path

import pytest

MODELS = Path(__file__).with_name("equal_models.py")
BEHAVIOUR = Path(__file__).with_name("same_behaviour.py")


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_statistics_and_addresses_equal_the_native_allocator(bench, settings):
    seen = {}
    for mode in ("native", "torch"):
        out = bench.folder / f"{mode}.json"
        bench.dryrun(MODELS, mode, out, env={"PYTORCH_ALLOC_CONF": settings} if settings else None)
        seen[mode] = json.loads(out.read_text())
    for model in seen["native"]:
        native, ours = seen["native"][model], seen["torch"][model]
        assert len(native["stats"]) > 100
        assert ours["stats"] == native["stats"], model
        assert ours["segments"] == native["segments"], model


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_memory_interfaces_answer_as_with_the_native_allocator(bench, settings):
    """Graphs, pools, lending pools, out of memory, streams, raw blocks, history, profiler, torch.accelerator, summaries."""
    answers = {}
    for mode in ("native", "torch"):
        out = bench.folder / f"{mode}.json"
        bench.dryrun(BEHAVIOUR, mode, out, env={"PYTORCH_ALLOC_CONF": settings} if settings else None)
        answers[mode] = json.loads(out.read_text())
    assert len(answers["native"]) > 10
    for name, native in answers["native"].items():
        assert answers["torch"][name] == native, name
        # PyTorch does not lend parts of expandable segments.
        assert not isinstance(native, str) or (name == "lending_pool" and settings), f"{name}: {native}"
