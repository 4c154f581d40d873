"""Names by a GRU: its cell written out gate by gate, and nn.GRU above it."""

import numpy as np
import torch
from torch import nn, optim
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset

seed = 42
rng = np.random.default_rng(seed)

words = """amsel drossel fink star meise lerche specht kauz uhu rabe elster dohle kranich reiher
storch ente gans schwan moewe falke adler bussard milan habicht sperber taube kuckuck zeisig
gimpel pirol""".split()
alphabet = "." + "".join(sorted(set("".join(words))))
length = max(map(len, words)) + 1


class GRUCell(nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.xh_to_z = nn.Linear(input_size + hidden_size, hidden_size)
        self.xh_to_r = nn.Linear(input_size + hidden_size, hidden_size)
        self.xh_to_hbar = nn.Linear(input_size + hidden_size, hidden_size)

    def forward(self, xt, hprev):
        xh = torch.cat([xt, hprev], dim=1)
        r = torch.sigmoid(self.xh_to_r(xh))
        xhr = torch.cat([xt, r * hprev], dim=1)
        hbar = torch.tanh(self.xh_to_hbar(xhr))
        z = torch.sigmoid(self.xh_to_z(xh))
        return (1 - z) * hprev + z * hbar


class NameModel(nn.Module):
    def __init__(self, vocab, width=16, hidden=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, width, padding_idx=0)
        self.cell = GRUCell(width, hidden)
        self.gru = nn.GRU(hidden, hidden, num_layers=1, batch_first=True)
        self.out = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, vocab))

    def forward(self, idx, state=None):
        h, last = state if state is not None else (
            torch.zeros(idx.shape[0], self.cell.xh_to_z.out_features), None)
        outputs = []
        for xt in self.embed(idx).unbind(1):
            h = self.cell(xt, h)
            outputs += [h]
        y, last = self.gru(torch.stack(outputs, dim=1), last)
        return self.out(y), (h, last)


rows = torch.zeros(len(words), length + 1).long()
for i, word in enumerate(words):
    rows[i, 1:len(word) + 1] = torch.tensor([alphabet.index(c) for c in word])
mask = (rows[:, :-1] != 0).float()
mask[:, 0] = 1.0
train = DataLoader(TensorDataset(rows[:, :-1], rows[:, 1:], mask), batch_size=8, shuffle=False)

model = NameModel(len(alphabet))
state = model.state_dict()
print("seed", seed, *(f"{name} {tuple(p.shape)}" for name, p in state.items()), sep="\n")
for name, p in state.items():
    state[name] = torch.from_numpy(rng.uniform(-0.25, 0.25, tuple(p.shape)).astype("float32"))
state["embed.weight"][0] = 0
model.load_state_dict(state)

criterion = nn.CrossEntropyLoss(reduction="none")
optimizer = optim.RMSprop(model.parameters(), lr=0.005, alpha=0.95)
scheduler = optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)

losses = []
for epoch in range(5):
    model.train()
    for x, y, m in train:
        optimizer.zero_grad()
        logits, _ = model(x)
        each = criterion(logits.flatten(0, 1), y.flatten())
        loss = (each * m.flatten()).sum() / m.sum()
        loss.backward()
        clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        losses.append(loss.item())
    scheduler.step()
    print(f"epoch {epoch}: loss {losses[-1]:.4f}, lr {scheduler.get_last_lr()[0]:.4f}")

model.eval()
result = ""
with torch.inference_mode():
    letter, state = torch.tensor([[0]]), None
    for _ in range(30):
        logits, state = model(letter, state)
        p = logits[0, -1].softmax(-1).numpy().astype("float64")
        i = int(rng.choice(len(alphabet), p=p / p.sum()))
        result += alphabet[i]
        letter = torch.tensor([[i]])
print(result)
