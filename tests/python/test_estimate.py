"""`vramledger estimate` against PyTorch itself: optimizer states, torchvision's layers, live modules, ONNX files."""

import json

import pytest
import torch
from conftest import TOOL

# torch.optim's class and settings, and the tool's name for it.
OPTIMIZERS = [
    ("sgd", "SGD", {}),
    ("momentum", "SGD", {"momentum": 0.9}),
    ("adamw", "AdamW", {}),
    ("adam", "Adam", {}),
    ("amsgrad", "Adam", {"amsgrad": True}),
    ("adamax", "Adamax", {}),
    ("nadam", "NAdam", {}),
    ("radam", "RAdam", {}),
    ("adagrad", "Adagrad", {}),
    ("adadelta", "Adadelta", {}),
    ("rmsprop", "RMSprop", {}),
    ("rmsprop-momentum", "RMSprop", {"momentum": 0.9}),
    ("rmsprop-centered", "RMSprop", {"centered": True}),
    ("rmsprop-centered-momentum", "RMSprop", {"centered": True, "momentum": 0.9}),
    ("adafactor", "Adafactor", {}),
    ("muon", "Muon", {}),
]
SHAPES = [(384, 256), (256, 128, 3, 3), (512,)]


def operators_of(shapes):
    """A description with these parameters and one operator."""
    tensors, storages = [], []
    for number, shape in enumerate(shapes):
        storages.append([4 * torch.Size(shape).numel(), 1])
        tensors.append([number, 0, 1, list(shape)])
    storages.append([512, 0])
    tensors.append([len(shapes), 0, 1, [128]])
    return {
        "schema": "vramledger.operators/1",
        "names": ["aten::relu"],
        "dtypes": ["float32"],
        "modules": [],
        "storages": storages,
        "tensors": tensors,
        "regions": [],
        "operators": [[0, -1, 1, -1, [0], [len(shapes)]]],
        "held": [],
    }


@pytest.mark.parametrize("name, kind, settings", OPTIMIZERS, ids=[o[0] for o in OPTIMIZERS])
def test_optimizer_state_is_pytorchs(bench, name, kind, settings):
    shapes = SHAPES[:1] if kind == "Muon" else SHAPES  # Muon takes matrices alone
    parameters = [torch.nn.Parameter(torch.ones(shape)) for shape in shapes]
    if kind == "Adafactor":
        # A convolution's weight is factored over its last two dimensions by PyTorch, as one matrix by the paper.
        parameters = [parameters[0], parameters[2]]
        shapes = [shapes[0], shapes[2]]
    optimizer = getattr(torch.optim, kind)(parameters, lr=0.01, **settings)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = [t for each in optimizer.state.values() for t in each.values() if isinstance(t, torch.Tensor) and t.numel() > 1]
    rounded = sum(-(-t.numel() * t.element_size() // 512) * 512 for t in state)
    description = bench.folder / "operators.json"
    description.write_text(json.dumps(operators_of(shapes)))
    answer = bench.json("estimate", description, "--optimizer", name)
    assert answer["analytic"]["optimizer_state"] == rounded


def saved_by_autograd(module, inputs, run):
    """Bytes of distinct storages that autograd keeps, without parameters, buffers and inputs, and of what the program holds:
    the tensors that `run` returns."""
    seen = {}
    apart = {t.untyped_storage()._cdata for t in [*module.parameters(), *module.buffers(), *inputs]}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in apart:
            seen[storage._cdata] = storage  # held, so that no other takes its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        for held in run():
            seen.setdefault(held.untyped_storage()._cdata, held.untyped_storage())
    return sum(storage.nbytes() for storage in seen.values())


# Elements of a sample that pass through a dropout, each with a byte of mask.
DROPOUT_ELEMENTS = {"vgg16": 2 * 4096, "alexnet": 9216 + 4096, "mobilenet_v2": 1280, "mobilenet_v3_large": 1280, "efficientnet_b0": 1280}


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "mobilenet_v2", "densenet121", "convnext_tiny", "alexnet", "mobilenet_v3_large", "efficientnet_b0"])
def test_torchvision_activations_are_autograds(bench, name):
    import torchvision

    batch = 4
    with torch.device("meta"):
        model = getattr(torchvision.models, name)()
        images = torch.empty(batch, 3, 224, 224)
        labels = torch.empty(batch, dtype=torch.int64)
    model.train()

    def run():
        output = model(images)
        return output, torch.nn.functional.cross_entropy(output, labels)

    # Dropout keeps a mask of float32 on this device, of one byte on CUDA.
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    expected = saved_by_autograd(model, (images,), run)
    answer = bench.json("estimate", f"torchvision:{name}", "--batch", str(batch))
    assert answer["parameters"] == sum(p.numel() for p in model.parameters())
    masks = DROPOUT_ELEMENTS.get(name, 0) * batch
    assert answer["analytic"]["activation"] - masks == pytest.approx(expected, rel=0.01)


SIZES = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 256}
LANGUAGE_MODELS = {
    "bert": SIZES,
    "roberta": {**SIZES, "type_vocab_size": 1},
    "distilbert": {"dim": 128, "n_layers": 2, "n_heads": 4, "hidden_dim": 512, "vocab_size": 1000, "max_position_embeddings": 256},
    "gpt2": {"n_embd": 128, "n_layer": 2, "n_head": 4, "vocab_size": 1000, "n_positions": 256},
    "gpt_neox": SIZES,
    "opt": {**SIZES, "ffn_dim": 512, "word_embed_proj_dim": 128},
    "llama": {**SIZES, "num_key_value_heads": 2},
    "qwen3": {**SIZES, "num_key_value_heads": 2, "head_dim": 32},
    "gemma2": {**SIZES, "num_key_value_heads": 2, "head_dim": 32},
    "mixtral": {**SIZES, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2},
    "t5": {"d_model": 128, "d_ff": 512, "d_kv": 32, "num_heads": 4, "num_layers": 2, "num_decoder_layers": 2, "vocab_size": 1000},
}
NO_DROPOUT = {
    key: 0.0
    for key in (
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "resid_pdrop",
        "attn_pdrop",
        "embd_pdrop",
        "dropout",
        "attention_dropout",
        "dropout_rate",
        "hidden_dropout",
    )
}


@pytest.mark.parametrize("kind", LANGUAGE_MODELS)
def test_transformers_activations_are_autograds(bench, kind):
    import transformers

    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.AutoConfig.for_model(kind, **LANGUAGE_MODELS[kind], **special)
    for key, value in NO_DROPOUT.items():
        if hasattr(config, key):
            setattr(config, key, value)
    encoder = kind in ("bert", "roberta", "distilbert")
    if kind == "t5":
        config._attn_implementation = "eager"
        model = transformers.T5ForConditionalGeneration(config)
    else:
        kinds = transformers.AutoModel if encoder else transformers.AutoModelForCausalLM
        model = kinds.from_config(config, attn_implementation="eager")
    batch, length = 2, 96
    tokens = torch.ones(batch, length, dtype=torch.int64)
    described = {**{k: v for k, v in config.to_dict().items() if v is not None}, "model_type": kind}
    path = bench.folder / "config.json"
    path.write_text(json.dumps(described, default=str))
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        model = model.to(dtype).train()

        def run():
            if encoder:
                return [t for t in model(input_ids=tokens).values() if isinstance(t, torch.Tensor)]
            more = {"decoder_input_ids": tokens} if kind == "t5" else {"use_cache": False}
            out = model(input_ids=tokens, labels=tokens, **more)
            return out.logits, out.loss

        expected = saved_by_autograd(model, (tokens,), run)
        options = ["--batch", str(batch), "--sequence", str(length), "--attention", "eager", "--precision", precision]
        answer = bench.json("estimate", path, *options)
        assert answer["parameters"] == sum(p.numel() for p in model.parameters())
        assert answer["analytic"]["activation"] == pytest.approx(expected, rel=0.01)


def test_bad_input_is_one_sentence(bench):
    for text in ["", "[]", "{}", "\x08\x01garbage", '{"model_type": "zebra"}', '{"schema": "vramledger.operators/1"}']:
        path = bench.folder / "bad.json"
        path.write_text(text)
        done = bench.run([TOOL, "estimate", path], check=False)
        assert done.returncode == 3, text
        assert len(done.stderr.strip().splitlines()) == 1
        assert str(path) in done.stderr
    for options in [["--tensor-parallel", "2"], ["--optimizer", "zebra"], ["--checkpoint", "every:0"], ["--capability", "nine"]]:
        done = bench.run([TOOL, "estimate", "torchvision:resnet18", *options], check=False)
        assert done.returncode == 2, options


def test_settings_that_contradict_each_other_are_refused(bench):
    config = {"model_type": "llama", **SIZES, "num_key_value_heads": 4}
    good, odd, deep, wide = (bench.folder / name for name in ("good.json", "odd.json", "deep.json", "wide.json"))
    good.write_text(json.dumps(config))
    odd.write_text(json.dumps({**config, "num_key_value_heads": 3}))
    deep.write_text(json.dumps({"model_type": "t5", **LANGUAGE_MODELS["t5"], "num_layers": 4, "num_decoder_layers": 9999}))
    vit = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 512, "image_size": 4096, "patch_size": 1}
    wide.write_text(json.dumps({"model_type": "vit", **vit}))
    for path, options, words in (
        (good, ["--precision", "fp16", "--dtype", "float32"], "--precision fp16 and --dtype float32 contradict each other"),
        (good, ["--zero", "3"], "give --data-parallel too"),
        (good, ["--sequence-parallel"], "give --tensor-parallel too"),
        (good, ["--master-weights"], "with --precision fp32 the parameters have 32 bits: give --precision bf16 or fp16"),
        (good, ["--master-weights", "--precision", "amp-bf16"], "with --precision amp-bf16 the parameters have 32 bits"),
        (good, ["--cublas-workspace", ":16777216:16777216" * 30], "--cublas-workspace"),
        (wide, ["--batch", "65536", "--attention", "eager"], "the batch and the sequence are too large for this model"),
        (good, ["--checkpoint", "every:99"], "every:99 is more than the 2 layers"),
        ("torchvision:resnet18", ["--sequence", "64"], "--sequence has no effect on resnet18, which takes images"),
        (wide, ["--decoder-sequence", "64"], "--decoder-sequence has no effect on"),
        (good, ["--decoder-sequence", "64"], "which is not an encoder with a decoder"),
        (odd, [], "4 heads for queries, which 3 for keys and values do not divide"),
        (deep, [], "the model has 10003 layers, more than 10,000"),
    ):
        done = bench.run([TOOL, "estimate", path, *options], check=False)
        assert done.returncode == 2 and words in done.stderr, (options, done.stderr)
        assert len(done.stderr.strip().splitlines()) == 1
    for options in (["--precision", "bf16", "--dtype", "bfloat16"], ["--zero", "3", "--data-parallel", "4"], ["--zero", "1", "--context-parallel", "4"], ["--checkpoint", "every:2"]):
        bench.run([TOOL, "estimate", good, *options])


def small_network():
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(256, 10))


def test_live_module(bench, monkeypatch):
    import vramledger

    monkeypatch.setenv("VRAMLEDGER_TOOL", str(TOOL))
    network = small_network().train()
    answer = vramledger.estimate(network, torch.randn(32, 64), optimizer="momentum")
    assert answer["schema"] == "vramledger.estimate/1"
    assert answer["parameters"] == sum(p.numel() for p in network.parameters())
    # GELU's input, what dropout keeps or its mask, the second layer's input, the output.
    assert answer["analytic"]["activation"] >= 32 * (256 + 256 + 10) * 4
    assert answer["analytic"]["optimizer_state"] >= 4 * answer["parameters"]
    assert all(p.device.type == "cpu" and p.grad is None for p in network.parameters())  # as it was
    assert vramledger.estimate(network, (torch.randn(64, 64),))["analytic"]["activation"] > answer["analytic"]["activation"]
    with pytest.raises(vramledger.EstimateError, match="Sequential cannot be run on the meta device"):
        vramledger.estimate(network, torch.randn(32, 63))
    with pytest.raises(vramledger.EstimateError, match="zebra"):
        vramledger.estimate(network, torch.randn(32, 64), optimizer="zebra")
    with pytest.raises(vramledger.EstimateError, match="--zebra"):
        vramledger.estimate(network, torch.randn(32, 64), zebra=1)


def test_the_batch_of_a_live_module_is_that_of_its_inputs(monkeypatch):
    import vramledger

    monkeypatch.setenv("VRAMLEDGER_TOOL", str(TOOL))
    network = small_network().train()
    answer = vramledger.estimate(network, torch.randn(32, 64))
    assert answer["batch"] == 32 and answer["sequence"] is None
    tokens = torch.nn.Sequential(torch.nn.Embedding(100, 64), small_network()).train()
    answer = vramledger.estimate(tokens, {"input": torch.ones(4, 12, dtype=torch.int64)})
    assert (answer["batch"], answer["sequence"]) == (4, 12)
    class Positions(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(8, 4)

        def forward(self, x):
            return x + self.table(torch.arange(8))

    with torch.device("meta"):
        assert vramledger.estimate(Positions(), torch.ones(2, 8, 4))["batch"] == 2
    for setting in ({"batch": 3}, {"sequence": 64}, {"precision": "bf16"}):
        with pytest.raises(vramledger.EstimateError, match=f"--{next(iter(setting))} has no effect on Sequential"):
            vramledger.estimate(network, torch.randn(32, 64), **setting)


@pytest.mark.parametrize("extension", ["1", "0"])
def test_a_live_module_can_be_estimated_while_a_trace_is_written(bench, extension):
    out = bench.dryrun("""
    import torch, vramledger
    vramledger.install(trace="t.vlt")
    network = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 10)).cuda()
    alone = vramledger.estimate(network, torch.randn(32, 64))           # on another device than the network
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(2):
        loss = network(torch.randn(32, 64).cuda()).sum()
        print("SAME", vramledger.estimate(network, torch.randn(32, 64)) == alone)  # between a forward and its backward
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    """, env={"VRAMLEDGER_TOOL": str(TOOL), "VRAMLEDGER_MODULE_CALLS": extension}).stdout
    assert out.count("SAME True") == 2
    assert [model["name"] for model in bench.json("report", bench.folder / "t.vlt")["models"]] == ["Sequential"]
    (check,) = bench.json("reconcile", bench.folder / "t.vlt")["activation_checks"]
    assert check["analytic_bytes"] == check["traced_bytes"]
