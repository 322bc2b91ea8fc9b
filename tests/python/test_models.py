"""The three demo models, accounted for to the byte, and against PyTorch's own allocator in the same script."""

import json

import pytest
from conftest import EXAMPLES

MODELS = {
    "bert_b32": ("bert.py", "--batch", "32"),
    "bert_b64": ("bert.py", "--batch", "64"),
    "resnet50": ("resnet50.py", "--batch", "32"),
    "dcgan": ("dcgan.py",),
}
BERT_BYTES = 109_482_240 * 4
RESNET_PARAMETERS = 25_557_032

NATIVE = """
import json, runpy, sys, torch
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
stats = torch.cuda.memory_stats()
print("NATIVE", json.dumps([stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"]]))
"""


@pytest.fixture(scope="module")
def traces(shared_bench):
    paths = {}
    for name, (script, *arguments) in MODELS.items():
        paths[name] = shared_bench.folder / f"{name}.vlt"
        shared_bench.dryrun(EXAMPLES / script, *arguments, allocator="plugin", trace=paths[name])
    return paths


@pytest.fixture(scope="module")
def reconciled(shared_bench, traces):
    return {name: shared_bench.json("reconcile", path) for name, path in traces.items()}


@pytest.fixture(scope="module")
def reports(shared_bench, traces):
    return {name: shared_bench.json("report", path) for name, path in traces.items()}


def requested(reconciled, category):
    return next(row["requested_bytes"] for row in reconciled["rows"] if row["category"] == category)


def test_bert_parameters_gradients_and_states_are_exact(reconciled):
    for name in ("bert_b32", "bert_b64"):
        assert requested(reconciled[name], "parameter") == BERT_BYTES
        assert requested(reconciled[name], "gradient") == BERT_BYTES
        # AdamW's step counters live on the CPU.
        assert requested(reconciled[name], "optimizer_state") == 2 * BERT_BYTES


def test_bert_activations_double_with_the_batch(reconciled):
    ratio = requested(reconciled["bert_b64"], "activation") / requested(reconciled["bert_b32"], "activation")
    assert ratio == pytest.approx(2.0, abs=0.02)


@pytest.mark.parametrize("name", MODELS)
def test_the_ledger_closes(reconciled, reports, name):
    assert reconciled[name]["unexplained_share"] < 0.01
    peak = reports[name]["peak"]
    assert sum(c["rounded_bytes"] for c in peak["categories"].values()) == peak["rounded_bytes"]
    assert peak["phase"] in ("forward", "backward", "optimizer")
    assert reports[name]["device"]["virtual"] is True


def test_the_rule_of_thumb_is_stated_and_the_difference_explained(shared_bench, traces):
    text = shared_bench.tool("reconcile", traces["bert_b32"]).stdout
    assert "textbook" in text and "activation" in text
    row = next(r for r in shared_bench.json("reconcile", traces["bert_b32"])["rows"] if r["category"] == "activation")
    assert row["textbook_bytes"] > 0
    assert row["differences"]


def test_resnet_momentum_equals_parameters_and_workspaces_have_their_row(reconciled):
    assert requested(reconciled["resnet50"], "parameter") == RESNET_PARAMETERS * 4
    assert requested(reconciled["resnet50"], "optimizer_state") == RESNET_PARAMETERS * 4
    assert requested(reconciled["resnet50"], "workspace") > 0


def test_dcgan_shows_both_networks_and_both_half_steps(shared_bench, reports, traces):
    report = reports["dcgan"]
    models = {m["name"]: m["parameter_bytes"] for m in report["models"]}
    assert models == {"Generator": 3_576_704 * 4, "Discriminator": 2_765_568 * 4}
    optimizers = {step["optimizer"] for step in report["steps"]}
    assert optimizers == {"Adam#1 of Discriminator", "Adam#2 of Generator"}
    assert len(report["steps"]) == 6
    assert all(step["peak_rounded_bytes"] > 0 for step in report["steps"])


@pytest.mark.parametrize("name", MODELS)
def test_peaks_equal_those_of_the_native_allocator(shared_bench, traces, reports, name):
    script, *arguments = MODELS[name]
    out = shared_bench.dryrun(NATIVE, EXAMPLES / script, *arguments).stdout
    allocated, reserved = json.loads(next(line for line in out.splitlines() if line.startswith("NATIVE"))[7:])
    # Both count 512-byte blocks.
    assert reports[name]["peak"]["rounded_bytes"] == allocated
    assert reports[name]["fragmentation"]["reserved_peak_bytes"] == reserved


@pytest.mark.parametrize("name", MODELS)
def test_the_trace_passes_the_checker(shared_bench, traces, name):
    shared_bench.tool("check", traces[name])


PURE = """
import runpy, sys, torch
plugin = torch.cuda.memory.CUDAPluggableAllocator({library!r}, "vramledger_malloc", "vramledger_free")
torch.cuda.memory.change_current_allocator(plugin)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("hooks", ["1", "0"])
def test_the_pure_form_gives_the_same_ledger(shared_bench, reconciled, hooks):
    """Nothing of ours in the script; with VRAMLEDGER_HOOKS=0 not even the hooks, so that only names and buffers are missing."""
    from conftest import LIBRARY

    trace = shared_bench.folder / f"pure{hooks}.vlt"
    script, *arguments = MODELS["bert_b32"]
    shared_bench.dryrun(PURE.format(library=str(LIBRARY)), EXAMPLES / script, *arguments,
                        env={"VRAMLEDGER_TRACE": str(trace), "VRAMLEDGER_HOOKS": hooks})
    pure = shared_bench.json("reconcile", trace)
    ours = reconciled["bert_b32"]
    unnamed = hooks == "0"
    for category in ("gradient", "optimizer_state", "workspace"):
        assert requested(pure, category) == requested(ours, category), category
    # Without hooks nothing tells that the 32,768 B of tokens, made with gradients on before the forward, are its input.
    extra = requested(pure, "activation") - requested(ours, "activation")
    assert extra in ((0, 32 * 128 * 8) if unnamed else (0,))
    buffers_and_inputs = requested(ours, "buffer") + requested(ours, "input") if unnamed else 0
    assert 0 <= requested(pure, "parameter") - requested(ours, "parameter") <= buffers_and_inputs
    assert pure["unexplained_share"] < 0.01
    device = shared_bench.json("report", trace)["device"]
    assert device["virtual"] is True
    assert device["used_peak_bytes"] > device["all"][0]["peak_rounded_bytes"]
