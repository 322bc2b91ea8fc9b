"""Transformers for text, and a recurrent network."""

import peft
import torch
import transformers

from tally import train

WIDTH = 64


def tokens(vocabulary=512, batch=2, length=32):
    return torch.randint(0, vocabulary, (batch, length)).cuda()


def with_labels(length=32):
    ids = tokens(length=length)
    return {"input_ids": ids, "labels": ids}


def bert():
    config = transformers.BertConfig(vocab_size=512, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, intermediate_size=4 * WIDTH)
    model = transformers.BertForMaskedLM(config).cuda()
    return train(model, torch.optim.AdamW(model.parameters()), with_labels)


def bert_bf16():
    config = transformers.BertConfig(vocab_size=512, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, intermediate_size=4 * WIDTH)
    model = transformers.BertForMaskedLM(config).cuda()
    return train(model, torch.optim.AdamW(model.parameters()), with_labels, autocast=torch.bfloat16)


def gpt2():
    """The output layer shares the embedding's weight. The length is one that gives no activation a weight's size."""
    config = transformers.GPT2Config(vocab_size=512, n_embd=WIDTH, n_layer=2, n_head=2, n_positions=64)
    model = transformers.GPT2LMHeadModel(config).cuda()
    return train(model, torch.optim.AdamW(model.parameters()), lambda: with_labels(24), autocast=torch.float16, scaler=torch.amp.GradScaler("cuda"), clip=1.0)


def llama():
    config = transformers.LlamaConfig(vocab_size=512, hidden_size=WIDTH, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config).to("cuda", torch.bfloat16)
    model.gradient_checkpointing_enable()
    model.train()
    return train(model, torch.optim.AdamW(model.parameters(), fused=True), with_labels)


def t5():
    config = transformers.T5Config(vocab_size=512, d_model=WIDTH, d_kv=32, d_ff=128, num_layers=2, num_heads=2, decoder_start_token_id=0)
    model = transformers.T5ForConditionalGeneration(config).cuda()
    return train(model, torch.optim.Adafactor(model.parameters()), with_labels, accumulate=2)


def mixtral():
    config = transformers.MixtralConfig(vocab_size=512, hidden_size=WIDTH, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                        num_key_value_heads=2, num_local_experts=4)
    model = transformers.MixtralForCausalLM(config).cuda()
    return train(model, torch.optim.AdamW(model.parameters(), amsgrad=True), with_labels)


def lora():
    """Low-rank adapters over frozen weights, with dropout before them. The length is one that gives no activation a weight's size."""
    config = transformers.LlamaConfig(vocab_size=512, hidden_size=WIDTH, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4)
    adapters = peft.LoraConfig(r=4, lora_dropout=0.05, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(transformers.LlamaForCausalLM(config), adapters).cuda()
    trained = [p for p in model.parameters() if p.requires_grad]
    return train(model, torch.optim.AdamW(trained), lambda: with_labels(24), autocast=torch.bfloat16)


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(512, WIDTH)
        self.lstm = torch.nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.head = torch.nn.Linear(WIDTH, 512)

    def forward(self, ids):
        return self.head(self.lstm(self.embedding(ids))[0])


def lstm():
    """cuDNN lays the weights of a recurrent layer into one storage; Adagrad makes its states before the first step."""
    model = Recurrent().cuda()
    optimizer = torch.optim.Adagrad(model.parameters())
    return train(model, optimizer, lambda: (tokens(),), lambda out: out.float().logsumexp(-1).mean(), clip=0.5)


CASES = {
    "BERT": ("fp32, AdamW", bert),
    "BERT bf16": ("bf16 autocast, AdamW", bert_bf16),
    "GPT-2": ("fp16 autocast, GradScaler, clipping, tied weights, AdamW", gpt2),
    "Llama-type": ("bf16 weights, checkpointing, fused AdamW", llama),
    "T5": ("accumulation of 2, Adafactor", t5),
    "Mixtral-type": ("AdamW with amsgrad", mixtral),
    "LoRA": ("adapters of `peft` over frozen weights, bf16 autocast, AdamW", lora),
    "LSTM": ("Adagrad, clipping", lstm),
}
