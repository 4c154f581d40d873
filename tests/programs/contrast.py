"""Two noisy views of one curve lie close together, other curves far away; then a linear probe."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR

seed = 5
rng = np.random.default_rng(seed)

t = np.linspace(0, 1, 24)
kinds = rng.integers(0, 3, 96)
curves = np.stack([[np.sin(2 * np.pi * (k + 1) * t + phase)]
                   for k, phase in zip(kinds, rng.uniform(0, 6.28, 96))])


def view(rows):
    shifted = np.stack([np.roll(curves[r], rng.integers(0, 24), axis=-1) for r in rows])
    return torch.from_numpy(shifted + rng.normal(0, 0.2, shifted.shape)).float()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(8, 16, 5, padding=2), nn.ReLU(), nn.Flatten(),
        )
        self.project = nn.Sequential(nn.Linear(16 * 12, 32, bias=False), nn.BatchNorm1d(32),
                                     nn.ReLU(), nn.Linear(32, 8))

    def forward(self, x):
        h = self.features(x)
        return h, self.project(h)


def info_nce(z1, z2, temperature=0.2):
    n = z1.shape[0]
    z = F.normalize(torch.cat([z1, z2], dim=0), dim=1)
    similarity = torch.matmul(z, z.T) / temperature
    self_mask = torch.eye(2 * n, dtype=torch.bool)
    similarity.masked_fill_(self_mask, -9e15)
    positive_mask = self_mask.roll(shifts=n, dims=0)
    return (-similarity[positive_mask] + torch.logsumexp(similarity, dim=-1)).mean()


def supervised(features, labels, probe):
    return F.cross_entropy(probe(features), labels, weight=torch.tensor([1.0, 2.0, 1.0]))


model = Encoder()
for p in model.parameters():
    if p.dim() > 1:
        p.data = torch.tensor(rng.normal(0, 1 / np.sqrt(p[0].numel()), p.shape), dtype=p.dtype)
    else:
        nn.init.ones_(p) if p is model.project[1].weight else nn.init.zeros_(p)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=1e-3)
scheduler = CosineAnnealingLR(optimizer, T_max=20, eta_min=5e-4)

losses = []
for _ in range(20):
    rows = rng.choice(64, 24, replace=False)
    (_, z1), (_, z2) = model(view(rows)), model(view(rows))
    loss = info_nce(z1, z2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    losses.append(loss.item())
print("seed", seed, "losses", losses[0], losses[-1], "rate", scheduler.get_last_lr())

for p in model.parameters():
    p.requires_grad = False
model.eval()
probe = nn.Linear(16 * 12, 3)
probe.load_state_dict({"weight": torch.zeros(3, 16 * 12), "bias": torch.zeros(3)})
train_x, test_x = (model(view(rows))[0] for rows in (range(64), range(64, 96)))
train_y, test_y = torch.tensor(kinds[:64]), torch.tensor(kinds[64:])
probe_optimizer = torch.optim.Adagrad(filter(lambda p: p.requires_grad, probe.parameters()), lr=0.1)
for _ in range(15):
    probe_optimizer.zero_grad()
    supervised(train_x, train_y, probe).backward()
    probe_optimizer.step()
guess = probe(test_x).argmax(1)
confusion = torch.zeros(3, 3, dtype=torch.int64)
for a, b in zip(test_y, guess):
    confusion[a, b] += 1
result = confusion.tolist()
print(result)
