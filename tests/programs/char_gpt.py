"""A GPT that learns the letters of a nursery rhyme, and writes on by itself."""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
from torch.nn import functional as F

seed = 1337
rng = np.random.default_rng(seed)

text = """Anna sat on a stone by the sea, and counted the waves from one to three.
The first came in and wet her shoes, the second one brought her the news,
the third one took her hat away, and that was all of Anna's day.
""" * 4
letters = sorted(set(text))
number_of = {letter: i for i, letter in enumerate(letters)}
letter_of = dict(enumerate(letters))


def encode(s):
    return [number_of[c] for c in s]


def decode(numbers):
    return "".join(letter_of[i] for i in numbers)


data = torch.tensor(encode(text), dtype=torch.long)
n = int(0.9 * len(data))
train_data, val_data = data[:n], data[n:]


@dataclass
class GPTConfig:
    block_size: int = 16
    vocab_size: int = len(letters)
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 32
    dropout: float = 0.0
    bias: bool = False


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout = nn.Dropout(config.dropout)
        self.n_head = config.n_head
        mask = torch.tril(torch.ones(config.block_size, config.block_size))
        self.register_buffer("mask", mask.view(1, 1, config.block_size, config.block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        att = self.attn_dropout(F.softmax(att, dim=-1))
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = MLP(config)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(config.vocab_size, config.n_embd),
            wpe=nn.Embedding(config.block_size, config.n_embd),
            drop=nn.Dropout(config.dropout),
            h=nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
            ln_f=nn.LayerNorm(config.n_embd),
        ))
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            drawn = rng.normal(0.0, 0.1, tuple(module.weight.shape))
            with torch.no_grad():
                module.weight.copy_(torch.tensor(drawn, dtype=torch.float32))

    def forward(self, idx, targets=None):
        B, T = idx.shape
        pos = torch.arange(0, T, dtype=torch.long, device=idx.device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss

    def configure_optimizer(self, weight_decay, learning_rate, betas):
        params = {name: p for name, p in self.named_parameters() if p.requires_grad}
        decay = [p for p in params.values() if p.dim() >= 2]
        no_decay = [p for p in params.values() if p.dim() < 2]
        groups = [{"params": decay, "weight_decay": weight_decay},
                  {"params": no_decay, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=betas)

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None):
        for _ in range(max_new_tokens):
            idx_cond = idx[:, -self.config.block_size:]
            logits, _ = self(idx_cond)
            logits = logits[:, -1, :] / temperature
            if top_k is not None:
                v, _ = torch.topk(logits, min(top_k, logits.size(-1)))
                logits[logits < v[:, [-1]]] = -float("Inf")
            probs = F.softmax(logits, dim=-1)
            # a number of NumPy's picks the letter, so that every library picks the same
            below = (torch.cumsum(probs, dim=-1) < rng.random()).sum(dim=-1, keepdim=True)
            idx = torch.cat((idx, below), dim=1)
        return idx


def get_batch(split, batch_size=8):
    data = train_data if split == "train" else val_data
    block_size = config.block_size
    ix = rng.integers(len(data) - block_size, size=batch_size)
    x = torch.stack([data[i:i + block_size] for i in ix])
    y = torch.stack([data[i + 1:i + block_size + 1] for i in ix])
    return x, y


@torch.no_grad()
def estimate_loss(model):
    model.eval()
    out = {}
    for split in ["train", "val"]:
        found = torch.zeros(3)
        for k in range(3):
            X, Y = get_batch(split)
            _, loss = model(X, Y)
            found[k] = loss.item()
        out[split] = found.mean().item()
    model.train()
    return out


def learning_rate(step, warmup=4, steps=20, highest=1e-2, lowest=1e-3):
    if step < warmup:
        return highest * (step + 1) / (warmup + 1)
    ratio = (step - warmup) / (steps - warmup)
    return lowest + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (highest - lowest)


config = GPTConfig()
model = GPT(config)
print(f"seed {seed}, {sum(p.numel() for p in model.parameters())} parameters")
optimizer = model.configure_optimizer(weight_decay=0.1, learning_rate=1e-2, betas=(0.9, 0.95))

losses = []
for step in range(20):
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step)
    if step % 10 == 0:
        print(step, estimate_loss(model))
    X, Y = get_batch("train")
    logits, loss = model(X, Y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    losses.append(loss.item())

model.eval()
start = torch.tensor([encode("Anna ")], dtype=torch.long)
result = decode(model.generate(start, max_new_tokens=40, temperature=0.8, top_k=5)[0].tolist())
print(losses[-1], result)
