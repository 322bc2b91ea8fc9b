"""Trains a model for three steps as a specification says: train_model.py SPECIFICATION.json CONFIG.json

The model's configuration goes to CONFIG.json, for `vramledger estimate`. Outputs stay in a variable until the next step's take
their place, as in most training loops.
"""

import contextlib
import json
import sys

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}
ENCODERS = ("bert", "roberta", "distilbert")


def build(spec, config_path):
    if spec["model"].startswith("torchvision:"):
        import torchvision

        return getattr(torchvision.models, spec["model"].split(":")[1])(), None
    import transformers

    config = transformers.AutoConfig.for_model(spec["model"], **spec["config"])
    described = {key: value for key, value in config.to_dict().items() if value is not None}
    with open(config_path, "w") as file:
        json.dump({**described, "model_type": spec["model"]}, file, default=str)
    kind = transformers.AutoModel if spec["model"] in ENCODERS else transformers.AutoModelForCausalLM
    if spec["model"] == "t5":
        kind = transformers.AutoModelForSeq2SeqLM
    attention = {"attn_implementation": spec["attention"]} if "attention" in spec else {}
    model = kind.from_config(config, **attention)
    if spec.get("checkpoint"):
        model.gradient_checkpointing_enable()
    return model, config


def batch_of(spec, config, dtype):
    size = spec["batch"]
    if config is None:
        return torch.randn(size, 3, 224, 224).cuda().to(dtype), torch.randint(0, 1000, (size,)).cuda()
    return (torch.randint(0, config.vocab_size, (size, spec["sequence"])).cuda(),)


def forward(spec, model, batch):
    if spec["model"].startswith("torchvision:"):
        outputs = model(batch[0])
        return outputs, torch.nn.functional.cross_entropy(outputs, batch[1])
    if spec["model"] in ENCODERS:
        outputs = model(input_ids=batch[0])
        return outputs, sum(t.float().square().mean() for t in outputs.values() if isinstance(t, torch.Tensor))
    more = {} if spec["model"] == "t5" else {"use_cache": False}
    outputs = model(input_ids=batch[0], labels=batch[0], **more)
    return outputs, outputs.loss


def main():
    spec = json.loads(sys.argv[1])
    torch.manual_seed(0)
    model, config = build(spec, sys.argv[2])
    precision = spec["precision"]
    amp = precision.startswith("amp-")
    if precision in ("bf16", "fp16"):
        model = model.to(DTYPES[precision])
    model = model.cuda().train()
    if spec.get("optimizer", "adamw") == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum={"sgd": 0.0, "momentum": 0.9}[spec["optimizer"]])
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "amp-fp16")
    for _ in range(3):
        batch = batch_of(spec, config, next(model.parameters()).dtype)
        optimizer.zero_grad()
        with torch.autocast("cuda", DTYPES[precision]) if amp else contextlib.nullcontext():
            outputs, loss = forward(spec, model, batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    del outputs


main()
