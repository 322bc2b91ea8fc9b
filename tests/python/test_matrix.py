"""The training scripts of tests/matrix, three steps each: the ledger against a walk over the storages that the script itself holds.

Writes tests/results/ledger.md (VRAMLEDGER_UPDATE_GOLDEN=1), which is compared otherwise.
"""

import json
import os

import pytest
from conftest import ROOT, TORCH

MATRIX = ROOT / "tests" / "matrix" / "run.py"
TABLE = ROOT / "tests" / "results" / "ledger.md"
CATEGORIES = ("parameter", "gradient", "optimizer_state")
HEADER = """# The ledger of each script of the matrix

Made by `tests/python/test_matrix.py` on the virtual device (h100-80gb): tiny configurations, three steps each. Bytes as PyTorch requested them, at each
category's own peak. Parameters, gradients and states equal, to the byte, a walk over the storages that the script holds.

"Saved" is what lives as the first backward begins (of a script that trains two networks, the larger of two such moments): analytic, from the operators that ran and
what autograd saves of each, and traced, from the allocations. Compiled code has no operators to look at.

| script | options | parameters | gradients | optimizer states | buffers | activations | saved, analytic | saved, traced | differs | cast cache | communication | unexplained at the peak |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
"""
# What these save is the compiler's choice.
COMPILED = {"compiled MLP", "compiled MLP, inductor"}
# Checkpointing of either kind, transposed inputs of linear layers, a mixture of experts, autocast.
WITHOUT_OPERATORS = ("Llama-type", "diffusion U-Net", "LSTM", "Mixtral-type", "BERT bf16", "shared layers")


@pytest.fixture(scope="module")
def runs(shared_bench):
    """name -> what the script said, with its reconciliation and report."""
    folder = shared_bench.folder / "matrix"
    folder.mkdir()
    # The scripts install vramledger themselves, each after a fork from one process that has imported PyTorch.
    done = shared_bench.dryrun(MATRIX, folder, env={"PYTHONWARNINGS": "ignore"})
    runs = {run["name"]: run for run in map(json.loads, done.stdout.splitlines())}
    for run in runs.values():
        if "error" not in run:
            run["reconcile"] = shared_bench.json("reconcile", run["trace"])
            run["report"] = shared_bench.json("report", run["trace"])
            run["rows"] = {row["category"]: row for row in run["reconcile"]["rows"]}
    return runs


def largest_check(run):
    return max(run["reconcile"]["activation_checks"], key=lambda check: check["traced_bytes"], default=None)


def requests(bench, trace):
    """Allocations and frees in order: kind, bytes, flags."""
    lines = bench.tool("export", trace, "--format", "csv").stdout.splitlines()
    kind, size, flags = (lines[0].split(",").index(column) for column in ("kind", "requested_bytes", "flags"))
    rows = [line.split(",") for line in lines[1:]]
    return [(row[kind], row[size], row[flags]) for row in rows if row[kind] in ("alloc", "free_requested", "free_completed")]


def requested(run, category):
    return run["rows"].get(category, {}).get("requested_bytes", 0)


def test_every_script_ran(runs):
    assert not {name: run["error"] for name, run in runs.items() if "error" in run}
    assert len(runs) >= 20


def test_parameters_gradients_and_states_equal_the_walk(runs):
    wrong = {}
    for name, run in runs.items():
        for category in CATEGORIES:
            walked, traced = run["walked"][category], requested(run, category)
            # While LBFGS replaces a vector, the old one is still there: no walk between steps can see both.
            if traced != walked and not (name == "LBFGS" and category == "optimizer_state" and walked <= traced <= 1.5 * walked):
                wrong[f"{name}, {category}"] = f"{walked:,} walked, {traced:,} traced"
    assert not wrong, "\n".join(f"{what}: {how}" for what, how in wrong.items())


def test_every_byte_at_the_peak_has_a_category(runs):
    for name, run in runs.items():
        peak = run["report"]["peak"]
        unknown = peak["categories"]["unknown"]["rounded_bytes"]
        assert unknown <= 0.01 * peak["rounded_bytes"], name
        assert run["reconcile"]["unexplained_share"] < 0.01, name


def test_models_are_called_by_their_own_names(runs):
    assert [m["name"] for m in runs["two towers, DDP"]["report"]["models"]] == ["TwoTowers"]
    assert [m["name"] for m in runs["compiled MLP"]["report"]["models"]] == ["Sequential"]
    # Three models of before are gone; what two models share is counted once.
    shared = {m["name"]: m["parameters"] for m in runs["shared layers"]["report"]["models"]}
    assert list(shared.values()) == [64 * 128 + 128 + 128 * 8 + 8, 128 * 24 + 24]


def test_lazy_models_are_described_once_they_have_shapes(runs):
    assert [m["parameters"] for m in runs["moved and reloaded"]["report"]["models"]] == [64 * 128 + 128 + 128 * 16 + 16]


def test_buckets_are_communication_unless_they_are_the_gradients(runs):
    assert requested(runs["two towers, DDP"], "communication") >= runs["two towers, DDP"]["walked"]["gradient"]
    # What DDP tells the other processes of the buckets' sizes.
    assert requested(runs["two towers, DDP views"], "communication") < 1024
    assert requested(runs["two towers"], "communication") == 0


def test_casts_of_weights_are_told_from_casts_of_activations(runs):
    """Even where both have the same size: 64 tokens, 64 wide."""
    layer = 4 * (64 * 64 + 64) + (64 * 256 + 256) + (256 * 64 + 64)
    head = (64 * 64 + 64) + (64 * 512 + 512)
    assert requested(runs["BERT bf16"], "cast_cache") == 2 * (2 * layer + head)
    assert requested(runs["BERT"], "cast_cache") == 0


def test_a_gan_of_small_networks_gets_no_verdict(runs):
    assert [v["id"] for v in runs["DCGAN"]["report"]["verdicts"]] == []


def test_analytic_activations_are_within_one_percent(runs):
    wrong = {}
    for name, run in runs.items():
        checks = run["reconcile"]["activation_checks"]
        assert bool(checks) == (name not in COMPILED), name
        for check in checks:
            if abs(check["analytic_bytes"] - check["traced_bytes"]) > 0.01 * check["traced_bytes"] or check["not_covered"]:
                wrong[name] = check
            assert check["analytic_cast_bytes"] == check["traced_cast_bytes"], name
    assert not wrong, "\n".join(f"{name}: {check}" for name, check in wrong.items())


def test_recording_operators_changes_no_request(runs, shared_bench):
    folder = shared_bench.folder / "without operators"
    folder.mkdir()
    done = shared_bench.dryrun(MATRIX, folder, *WITHOUT_OPERATORS, env={"PYTHONWARNINGS": "ignore", "VRAMLEDGER_OPERATORS": "0"})
    for line in done.stdout.splitlines():
        plain = json.loads(line)
        without, recorded = requests(shared_bench, plain["trace"]), requests(shared_bench, runs[plain["name"]]["trace"])
        assert [r for r in without if r[0] == "alloc"] == [r for r in recorded if r[0] == "alloc"], plain["name"]
        # The order in which autocast drops its casts is that of a hash table of pointers.
        if "autocast" in plain["options"]:
            without, recorded = sorted(without), sorted(recorded)
        assert without == recorded, plain["name"]
        assert not shared_bench.json("reconcile", plain["trace"])["activation_checks"], plain["name"]
    assert len(done.stdout.splitlines()) == len(WITHOUT_OPERATORS)


@pytest.mark.skipif(TORCH != (2, 11), reason="the table is that of PyTorch 2.11; another version saves a few bytes more or less")
def test_the_table(runs):
    rows = []
    for name, run in runs.items():
        check = largest_check(run)
        cells = [f"{requested(run, c):,}" for c in (*CATEGORIES, "buffer", "activation")]
        if check is None:
            cells += ["-", "-", "-"]
        else:
            share = check["analytic_bytes"] / check["traced_bytes"] - 1
            cells += [f"{check['analytic_bytes']:,}", f"{check['traced_bytes']:,}", f"{100 * share:.2f} %".replace("-0.00", "0.00")]
        cells += [f"{requested(run, c):,}" for c in ("cast_cache", "communication")]
        rows.append(" | ".join([f"| {name}", run["options"], *cells, f"{100 * run['reconcile']['unexplained_share']:.2f} % |"]))
    text = HEADER + "\n".join(rows) + "\n"
    if os.environ.get("VRAMLEDGER_UPDATE_GOLDEN"):
        TABLE.write_text(text)
    assert text == TABLE.read_text()
