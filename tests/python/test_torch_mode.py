"""Mode torch: our allocator as PyTorch's own kind, against PyTorch's allocator and against PyTorch's features."""

import json
from pathlib import Path

import pytest

MODELS = Path(__file__).with_name("equal_models.py")


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
