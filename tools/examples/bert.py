"""BERT-base (109,482,240 parameters) with AdamW: the demo's main model. Random weights, random tokens; the objective uses the hidden states and
the pooled output, so that every parameter gets a gradient.

    python bert.py [--batch 32] [--sequence 128] [--steps 3] [--bf16] [--checkpoint] [--fused]
"""

import argparse
import contextlib

import torch
from transformers import BertConfig, BertModel


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--bf16", action="store_true", help="bf16 autocast")
    parser.add_argument("--checkpoint", action="store_true", help="activation checkpointing of every layer")
    parser.add_argument("--fused", action="store_true", help="fused AdamW")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = BertModel(BertConfig())
    if options.checkpoint:
        model.gradient_checkpointing_enable()
    model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=options.fused or None)
    for step in range(options.steps):
        tokens = torch.randint(0, 30522, (options.batch, options.sequence)).cuda()
        with torch.autocast("cuda", torch.bfloat16) if options.bf16 else contextlib.nullcontext():
            output = model(input_ids=tokens)
            loss = output.last_hidden_state.square().mean() + output.pooler_output.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step + 1} done")


if __name__ == "__main__":
    main()
