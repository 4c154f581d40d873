"""An encoder and a decoder learn to copy a sequence. Attention is nn.MultiheadAttention."""

import copy
import math

import numpy as np
import torch
import torch.nn as nn
from torch.nn.functional import log_softmax, pad
from torch.optim.lr_scheduler import LambdaLR

seed = 8
rng = np.random.default_rng(seed)
PAD, START = 0, 1


def clones(module, N):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(N)])


def subsequent_mask(size):
    return torch.triu(torch.ones(size, size), diagonal=1).bool()


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=50):
        super().__init__()
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        return x + self.pe[:, :x.size(1)].requires_grad_(False)


class SublayerConnection(nn.Module):
    def __init__(self, size, dropout=0.0):
        super().__init__()
        self.norm = nn.LayerNorm(size, eps=1e-6)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, sublayer):
        return x + self.dropout(sublayer(self.norm(x)))


class DecoderLayer(nn.Module):
    def __init__(self, d_model, heads, d_ff):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, heads, bias=False, batch_first=True)
        self.src_attn = nn.MultiheadAttention(d_model, heads, bias=False, batch_first=True)
        self.feed_forward = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(),
                                          nn.Linear(d_ff, d_model))
        self.sublayer = clones(SublayerConnection(d_model), 3)

    def forward(self, x, memory, src_padding, tgt_mask, tgt_padding):
        m = memory
        x = self.sublayer[0](x, lambda x: self.self_attn(
            x, x, x, attn_mask=tgt_mask, key_padding_mask=tgt_padding, need_weights=False)[0])
        x = self.sublayer[1](x, lambda x: self.src_attn(
            x, m, m, key_padding_mask=src_padding, need_weights=False)[0])
        return self.sublayer[2](x, self.feed_forward)


class EncoderDecoder(nn.Module):
    def __init__(self, vocab, N=2, d_model=32, d_ff=64, heads=4):
        super().__init__()
        self.d_model = d_model
        self.src_embed = nn.Embedding(vocab, d_model, padding_idx=PAD)
        self.tgt_embed = nn.Embedding(vocab, d_model, padding_idx=PAD)
        self.position = PositionalEncoding(d_model)
        layer = nn.TransformerEncoderLayer(d_model, heads, d_ff, dropout=0.0, batch_first=True,
                                           norm_first=True, bias=False)
        self.encoder = nn.TransformerEncoder(layer, num_layers=N, norm=nn.LayerNorm(d_model),
                                             enable_nested_tensor=False)
        self.decoder = clones(DecoderLayer(d_model, heads, d_ff), N)
        self.norm = nn.LayerNorm(d_model)
        self.generator = nn.Linear(d_model, vocab)

    def encode(self, src):
        x = self.position(self.src_embed(src) * math.sqrt(self.d_model))
        return self.encoder(x, src_key_padding_mask=src == PAD)

    def decode(self, memory, src, tgt):
        x = self.position(self.tgt_embed(tgt) * math.sqrt(self.d_model))
        mask = subsequent_mask(tgt.size(1))
        for layer in self.decoder:
            x = layer(x, memory, src == PAD, mask, tgt == PAD)
        return log_softmax(self.generator(self.norm(x)), dim=-1)

    def forward(self, src, tgt):
        return self.decode(self.encode(src), src, tgt)


class LabelSmoothing(nn.Module):
    def __init__(self, size, padding_idx, smoothing=0.0):
        super().__init__()
        self.criterion = nn.KLDivLoss(reduction="sum")
        self.padding_idx = padding_idx
        self.confidence = 1.0 - smoothing
        self.smoothing = smoothing
        self.size = size

    def forward(self, x, target):
        assert x.size(1) == self.size
        true_dist = x.data.clone()
        true_dist.fill_(self.smoothing / (self.size - 2))
        true_dist.scatter_(1, target.data.unsqueeze(1), self.confidence)
        true_dist[:, self.padding_idx] = 0
        mask = torch.nonzero(target.data == self.padding_idx)
        if mask.dim() > 0:
            true_dist.index_fill_(0, mask.squeeze(), 0.0)
        return self.criterion(x, true_dist.clone().detach())


def data_gen(V, batch_size):
    while True:
        rows = [rng.integers(2, V, rng.integers(3, 8)).tolist() for _ in range(batch_size)]
        longest = max(map(len, rows))
        src = torch.stack([pad(torch.tensor(row), (0, longest - len(row)), value=PAD)
                           for row in rows])
        tgt = torch.tensor([[START] + row + [PAD] * (longest - len(row)) for row in rows])
        yield src, tgt


def rate(step, model_size, factor, warmup):
    if step == 0:
        step = 1
    return factor * (model_size ** (-0.5) * min(step ** (-0.5), step * warmup ** (-1.5)))


V = 12
model = EncoderDecoder(V)
for p in model.parameters():
    if p.dim() > 1:
        bound = math.sqrt(6 / sum(p.shape))
        p.data.copy_(torch.from_numpy(rng.uniform(-bound, bound, p.shape)))
    elif p.shape == (V,):
        nn.init.zeros_(p)
for layer in model.decoder:
    for i in (0, 2):
        layer.feed_forward[i].bias.data.zero_()
with torch.no_grad():
    model.src_embed.weight[PAD].fill_(0)
    model.tgt_embed.weight[PAD].zero_()
print("seed", seed, "tensors", len(list(model.parameters())))
criterion = LabelSmoothing(size=V, padding_idx=PAD, smoothing=0.1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.5, betas=(0.9, 0.98), eps=1e-9)
lr_scheduler = LambdaLR(optimizer, lr_lambda=lambda step: rate(step, 32, factor=1.0, warmup=50))

losses = []
batches = data_gen(V, 24)
for step in range(20):
    src, tgt = next(batches)
    out = model(src, tgt[:, :-1])
    y = tgt[:, 1:]
    ntokens = (y != PAD).sum()
    loss = criterion(out.contiguous().view(-1, out.size(-1)), y.contiguous().view(-1)) / ntokens
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    lr_scheduler.step()
    losses.append(loss.item())
    if step % 5 == 0:
        print(f"step {step}: loss {losses[-1]:.3f}, rate {optimizer.param_groups[0]['lr']:.1e}")


@torch.no_grad()
def greedy_decode(model, src, max_len, start_symbol):
    memory = model.encode(src)
    ys = torch.zeros(src.size(0), 1).fill_(start_symbol).type_as(src.data)
    for _ in range(max_len - 1):
        prob = model.decode(memory, src, ys)[:, -1]
        _, next_word = torch.max(prob, dim=1)
        ys = torch.cat([ys, next_word[:, None]], dim=1)
    return ys


model.eval()
src = torch.tensor([[2, 3, 4, 5, 6], [11, 9, 7, 5, 3]])
result = greedy_decode(model, src, max_len=6, start_symbol=START).tolist()
print(result)
