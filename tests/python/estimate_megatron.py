"""Megatron-LM's CI runs as descriptions for `vramledger estimate`, and how near its peaks come to the measured ones."""

import csv
import gzip
import io
import json
import re
import statistics
import subprocess

# Entries of the vocabulary files and tokenizers that the runs name, before padding.
VOCABULARY = {
    "vocab.json": 50257,
    "vocab.txt": 30522,
    "bert-large-cased-vocab.txt": 28996,
    "nemotron_2_256k.model": 256000,
    "tokenizer.model": 32000,
}
CAPABILITY = {"A100": "8.0", "H100": "9.0", "GB200": "10.0"}


def read_runs(path):
    """One entry for each run: name, configuration, measured bytes by metric."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        text = file.read()
    runs = {}
    for row in csv.DictReader(io.StringIO(text)):
        run = runs.setdefault(row["source"], {"model": row["model"], "config": json.loads(row["config"]), "source": row["source"]})
        run[row["metric"]] = int(row["bytes"])
    return list(runs.values())


def padded_vocabulary(c):
    size = c.get("vocab")
    if size is None:
        size = VOCABULARY.get(c.get("vocab_file")) or VOCABULARY.get(c.get("tokenizer_model")) or 32000
    elif c.get("tokenizer") == "NullTokenizer":
        size += 1
    size += c.get("vocab_extra_ids", 0)
    unit = c.get("vocab_divisor", 128) * c["tp"]
    return -(-size // unit) * unit


def dense_layers_first(c):
    pattern = c.get("moe_layer_freq")
    if not isinstance(pattern, str):
        return 0
    found = re.match(r"\(\[0\]\*(\d+)\+\[1\]\*\d+\)", pattern)
    return int(found.group(1)) if found else 0


def description(c, model):
    """The model's sizes as the tool reads them; None where it has layers that the tool does not know."""
    if "hybrid_pattern" in c:
        return None
    heads, hidden = c["heads"], c["hidden"]
    width = c.get("ffn_hidden") or (int(4 * hidden * 2 / 3 / 64) * 64 if c.get("swiglu") else 4 * hidden)
    d = {
        "model_type": "transformer",
        "hidden_size": hidden,
        "num_hidden_layers": c.get("layers") or c["encoder_layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": c.get("query_groups", heads) if c.get("gqa") else heads,
        "head_dim": c.get("kv_channels", hidden // heads),
        "intermediate_size": width,
        "vocab_size": padded_vocabulary(c),
        "max_position_embeddings": c["max_pos"],
        "position_embedding": c.get("pos_embedding", "learned"),
        "norm": "rmsnorm" if c.get("norm") == "RMSNorm" else "layernorm",
        "gated": bool(c.get("swiglu")),
        "hidden_act": "silu" if c.get("swiglu") else "gelu",
        "bias": not c.get("no_bias", False),
        "tie_word_embeddings": not c.get("untied_embeddings", False),
        "qk_norm": bool(c.get("qk_norm")),
        "hidden_dropout": c.get("hidden_dropout", 0.1),
        "attention_dropout": c.get("attention_dropout", 0.1),
        "mtp_layers": c.get("mtp_layers", 0),
    }
    if model.startswith("bert/"):
        d.update(masked_head=True, pooler=True, token_types=2)
    if model.startswith("t5/"):
        d.update(model_type="t5", num_decoder_layers=c["decoder_layers"], norm="layernorm", masked_head=True, relative_attention_num_buckets=0)
    if c.get("experts"):
        expert = c.get("moe_ffn", width)
        d.update(
            num_local_experts=c["experts"],
            num_experts_per_tok=c.get("topk", 1),
            moe_intermediate_size=expert,
            n_shared_experts=c.get("moe_shared_ffn", 0) // expert,
            first_k_dense_replace=dense_layers_first(c),
        )
    if c.get("mla"):
        d.update(
            q_lora_rank=c.get("q_lora", 0),
            kv_lora_rank=c["kv_lora"],
            qk_nope_head_dim=c["qk_head_dim"],
            qk_rope_head_dim=c["qk_pos_dim"],
            v_head_dim=c["v_head_dim"],
        )
    return d


def attention(c):
    backend = c.get("attention_backend")
    if c.get("flash_attn") or backend == "flash":
        return "flash"
    if backend == "fused":
        return "cudnn"
    if backend in ("unfused", "local") or c.get("impl") != "transformer_engine":
        return "eager"
    return "flash"


def flags(c):
    tp, pp = c["tp"], c.get("pp", 1)
    # Where the number of data ranks was not recorded: as few as its expert parallelism needs.
    dp = c.get("dp") or max(1, c.get("ep", 1) * c.get("etp", tp) // (tp * c.get("cp", 1)))
    kernels = "transformer-engine" if c.get("impl") == "transformer_engine" else "megatron"
    out = ["--kernels", kernels, "--batch", c["micro_batch"], "--sequence", c.get("seq") or c["encoder_seq"]]
    if "decoder_seq" in c:
        out += ["--decoder-sequence", c["decoder_seq"]]
    out += ["--precision", "fp16" if c.get("fp16") else "bf16", "--attention", attention(c), "--capability", CAPABILITY[c["gpu"]]]
    if c.get("deterministic"):
        out += ["--cublas-workspace", ":4096:8"]  # what Megatron-LM's deterministic mode asks for
    if c.get("fp16"):
        out += ["--gradient-dtype", "fp16"]
    batch = c.get("global_batch") or 384
    out += ["--micro-batches", max(1, batch // (c["micro_batch"] * dp))]
    instances = c.get("distopt_instances", 1)
    out += ["--data-parallel", max(1, dp // instances), "--tensor-parallel", tp, "--context-parallel", c.get("cp", 1)]
    out += ["--pipeline-parallel", pp, "--pipeline-stage", pp - 1]
    layers = c.get("layers") or c["encoder_layers"]
    if pp > 1 and c.get("vpp_layers_per_stage"):
        out += ["--virtual-stages", max(1, layers // pp // c["vpp_layers_per_stage"])]
    elif pp > 1 and c.get("vpp_stages"):
        out += ["--virtual-stages", c["vpp_stages"]]
    elif pp > 1 and c.get("pp_layout"):
        out += layout_flags(c["pp_layout"], pp)
    if c.get("vpp_group"):
        out += ["--virtual-group", c["vpp_group"]]
    if c.get("pp_first_layers"):
        out += ["--first-stage-layers", c["pp_first_layers"]]
    if c.get("pp_last_layers"):
        out += ["--last-stage-layers", c["pp_last_layers"]]
    if c.get("sp") and tp > 1:
        out += ["--sequence-parallel"]
    if c.get("experts"):
        out += ["--expert-parallel", c.get("ep", 1)]
        if c.get("etp"):
            out += ["--expert-tensor-parallel", c["etp"]]
    if c.get("fsdp_sharding") == "optim_grads_params":
        out += ["--fsdp"]
    elif c.get("distributed_optimizer") and (max(1, dp // instances) * c.get("cp", 1) > 1 or (c.get("experts") and tp > c.get("ep", 1) * (c.get("etp") or tp))):
        out += ["--zero", 1]  # over one rank it shares nothing, and the tool says so
    if c.get("recompute") == "full":
        out += ["--checkpoint", f"every:{c.get('recompute_layers', 1)}"]
    elif c.get("recompute") == "selective" and "recompute_modules" not in c:
        out += ["--checkpoint", "selective"]
    if c.get("optimizer") == "muon":
        out += ["--optimizer", "muon"]
    return [str(part) for part in out]


def layout_flags(layout, pp):
    """A layout such as Et*3|(tt|)*6mL: chunks between bars, t a layer."""
    text = re.sub(r"\(([^)]*)\)\*(\d+)", lambda m: m.group(1) * int(m.group(2)), layout)
    text = re.sub(r"(\w)\*(\d+)", lambda m: m.group(1) * int(m.group(2)), text)
    chunks = text.split("|")
    if len(chunks) == pp:
        return ["--first-stage-layers", chunks[0].count("t"), "--last-stage-layers", chunks[-1].count("t")]
    return ["--virtual-stages", max(1, len(chunks) // pp)]


def predict(tool, folder, run):
    """The tool's answer for the run, as JSON, or the sentence with which it declines."""
    d = description(run["config"], run["model"])
    if d is None:
        return "has state-space layers, which the tool does not know"
    path = folder / "model.json"
    path.write_text(json.dumps(d))
    done = subprocess.run([str(tool), "estimate", str(path), *flags(run["config"]), "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        return done.stderr.strip().splitlines()[-1]
    return json.loads(done.stdout)


# Why a run may miss by more than a tenth, the most specific reason first.
GROUPS = (
    ("the number of data ranks was not recorded", lambda c, m: "dp" not in c),
    ("fp8 weights and activations, not modelled", lambda c, m: "fp8" in c),
    ("activations moved to the host, not modelled", lambda c, m: "act_offload" in c),
    ("chosen modules computed again, not modelled", lambda c, m: "recompute_modules" in c),
    ("a multi-token-prediction layer", lambda c, m: c.get("mtp_layers")),
    ("FSDP's own buffers", lambda c, m: "fsdp_sharding" in c),
    ("routed experts: copies of the dispatcher, uneven loads", lambda c, m: c.get("experts")),
    ("latent attention", lambda c, m: c.get("mla")),
    ("encoder and decoder of T5", lambda c, m: m.startswith("t5/")),
    ("the gradients of the embedding are deferred, not modelled", lambda c, m: "defer_emb_wgrad" in c),
    ("a run that checks its gradients, which holds more between steps", lambda c, m: "check_grads" in m),
)


def group_of(run):
    for name, applies in GROUPS:
        if applies(run["config"], run["model"]):
            return name
    peak = run["torch_allocated_peak"]
    return "small peaks (under 2 GiB), where constant buffers weigh" if peak < 2 << 30 else "other"


def evaluate(tool, folder, runs):
    """Per run: error of the peak, of what stands between steps, whether the bounds hold the measured peak."""
    out = []
    for run in runs:
        answer = predict(tool, folder, run)
        if isinstance(answer, str):
            out.append({"run": run, "refused": answer})
            continue
        a = answer["analytic"]
        standing = sum(a[key] or 0 for key in ("parameter", "gradient", "optimizer_state", "workspace", "communication"))
        peak = run["torch_allocated_peak"]
        out.append(
            {
                "run": run,
                "peak": answer["peak_bytes"],
                "error": answer["peak_bytes"] / peak - 1,
                "standing_error": standing / run["torch_allocated_end_of_step"] - 1,
                "standing_difference": run["torch_allocated_end_of_step"] - standing,
                "held": answer["low_bytes"] <= peak <= answer["high_bytes"],
                "parameters": answer["rank_parameters"],
            }
        )
    return out


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def table(results):
    """The report as Markdown."""
    known = [r for r in results if "error" in r]
    errors = [abs(r["error"]) for r in known]
    lines = [
        "# The analytic peak against Megatron-LM's CI runs",
        "",
        "Made by `tests/python/test_estimate_megatron.py` from `tests/data/estimate/megatron_golden.csv.gz`: the largest"
        " `max_memory_allocated` of the last rank over a run, against the peak that `vramledger estimate --kernels megatron`"
        " gives from the run's arguments alone. No constant of the peak was fitted to these runs; what the upper bound allows for"
        " was chosen with them at hand.",
        "",
        f"{len(results)} runs; {len(known)} answered, {len(results) - len(known)} declined (state-space layers)."
        f" **Median error {statistics.median(errors):.1%}**; the measured peak lies within the stated bounds in"
        f" {sum(r['held'] for r in known)} of {len(known)}.",
        "",
        "| absolute error | runs | share |",
        "|---|---|---|",
    ]
    edges = (0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 10)
    for low, high in zip(edges, edges[1:]):
        n = sum(low <= e < high for e in errors)
        name = f"{low:.0%} to {high:.0%}" if high < 10 else f"over {low:.0%}"
        lines.append(f"| {name} | {n} | {n / len(errors):.0%} |")
    quantiles = ", ".join(f"p{int(q * 100)} {quantile(errors, q):.1%}" for q in (0.25, 0.5, 0.75, 0.9))
    low = sum(r["error"] < 0 for r in known)
    lines += ["", f"Quantiles: {quantiles}; too low in {low} of {len(known)}.", "", "| family | runs | median error | worst |", "|---|---|---|---|"]
    families = {}
    for r in known:
        families.setdefault(r["run"]["model"].split("/")[0], []).append(r["error"])
    for family, signed in sorted(families.items()):
        lines.append(f"| {family} | {len(signed)} | {statistics.median(map(abs, signed)):.1%} | {max(signed, key=abs):+.1%} |")
    lines += ["", "## Off by more than 10 %", "", "| reason | runs | of | errors |", "|---|---|---|---|"]
    groups = {}
    for r in known:
        groups.setdefault(group_of(r["run"]), []).append(r["error"])
    for name, signed in sorted(groups.items(), key=lambda item: -sum(abs(e) > 0.1 for e in item[1])):
        off = [e for e in signed if abs(e) > 0.1]
        if off:
            lines.append(f"| {name} | {len(off)} | {len(signed)} | {min(off):+.0%} to {max(off):+.0%} |")
    refused = len(results) - len(known)
    lines.append(f"| state-space layers (hybrid, nemotron): declined | {refused} | {refused} | - |")
    return lines
