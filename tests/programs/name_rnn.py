"""A recurrent network, written by hand, reads a name letter by letter and says the next one."""

import numpy as np
import torch
import torch.nn as nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

seed = 3407
rng = np.random.default_rng(seed)

words = """berlin bonn bremen dresden erfurt essen fulda gera gotha hagen halle hamm jena kassel
kiel koeln leer lemgo luebeck mainz marburg minden moers neuss passau plauen soest speyer stade
trier ulm unna weimar wesel worms zwickau""".split()


class CharDataset(Dataset):
    def __init__(self, words, chars, max_word_length):
        self.words = words
        self.chars = chars
        self.max_word_length = max_word_length
        self.stoi = {ch: i + 1 for i, ch in enumerate(self.chars)}
        self.itos = {i: s for s, i in self.stoi.items()}

    def __len__(self):
        return len(self.words)

    def get_vocab_size(self):
        return len(self.chars) + 1

    def get_output_length(self):
        return self.max_word_length + 1

    def encode(self, word):
        return torch.tensor([self.stoi[w] for w in word], dtype=torch.long)

    def decode(self, ix):
        return "".join(self.itos[i] for i in ix)

    def __getitem__(self, idx):
        ix = self.encode(self.words[idx])
        x = torch.zeros(self.max_word_length + 1, dtype=torch.long)
        y = torch.zeros(self.max_word_length + 1, dtype=torch.long)
        x[1:1 + len(ix)] = ix
        y[:len(ix)] = ix
        y[len(ix) + 1:] = -1  # no loss behind the end of the word
        return x, y


class RNNCell(nn.Module):
    def __init__(self, n_embd, n_hidden):
        super().__init__()
        self.xh_to_h = nn.Linear(n_embd + n_hidden, n_hidden)

    def forward(self, xt, hprev):
        xh = torch.cat([xt, hprev], dim=1)
        return F.tanh(self.xh_to_h(xh))


class RNN(nn.Module):
    def __init__(self, vocab_size, n_embd, n_hidden):
        super().__init__()
        self.start = nn.Parameter(torch.zeros(1, n_hidden))
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.cell = RNNCell(n_embd, n_hidden)
        self.lm_head = nn.Linear(n_hidden, vocab_size)

    def forward(self, idx, targets=None):
        b, t = idx.size()
        emb = self.wte(idx)
        hprev = self.start.expand((b, -1))
        hiddens = []
        for i in range(t):
            hprev = self.cell(emb[:, i, :], hprev)
            hiddens.append(hprev)
        logits = self.lm_head(torch.stack(hiddens, 1))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1),
                                   ignore_index=-1)
        return logits, loss


chars = sorted(set("".join(words)))
max_word_length = max(len(w) for w in words)
train_dataset = CharDataset(words[::2], chars, max_word_length)
test_dataset = CharDataset(words[1::2], chars, max_word_length)

model = RNN(train_dataset.get_vocab_size(), n_embd=12, n_hidden=32)
for p in model.parameters():
    p.data = torch.tensor(rng.normal(0, 0.2, tuple(p.shape)), dtype=torch.float32)
print("seed", seed, "parameters", sum(p.numel() for p in model.parameters()))

optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01, betas=(0.9, 0.99),
                              eps=1e-8)
loader = DataLoader(train_dataset, batch_size=5, drop_last=False)

losses = []
while len(losses) < 20:
    for batch in loader:
        X, Y = batch
        logits, loss = model(X, Y)
        model.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) == 20:
            break

model.eval()
with torch.no_grad():
    test_losses = [model(X, Y)[1].item() for X, Y in DataLoader(test_dataset, batch_size=10)]
    idx = torch.zeros(4, 1, dtype=torch.long)
    for _ in range(train_dataset.get_output_length() - 1):
        logits, _ = model(idx)
        probs = F.softmax(logits[:, -1, :], dim=-1)
        drawn = torch.tensor(rng.random((4, 1)), dtype=torch.float32)
        idx_next = (probs.cumsum(1) < drawn).sum(1, keepdim=True)
        idx = torch.cat((idx, idx_next), dim=1)
result = []
for row in idx[:, 1:].tolist():
    end = row.index(0) if 0 in row else len(row)
    result.append(train_dataset.decode(row[:end]))
print(losses[-1], sum(test_losses) / len(test_losses), result)
