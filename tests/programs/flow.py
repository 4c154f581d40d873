"""A normalising flow, RealNVP, bends a Gaussian cloud into two moons."""

import math

import numpy as np
import torch
from torch import nn

seed = 1605
rng = np.random.default_rng(seed)


def two_moons(n):
    angle = rng.uniform(0, math.pi, n)
    upper = rng.random(n) < 0.5
    x = np.where(upper, np.cos(angle), 1 - np.cos(angle))
    y = np.where(upper, np.sin(angle), 0.5 - np.sin(angle))
    points = np.stack([x - 0.5, y - 0.25], 1) + rng.normal(0, 0.05, (n, 2))
    return torch.tensor(points, dtype=torch.float32)


class Coupling(nn.Module):
    """y = x where the mask is 1, else x exp(s) + t; s and t depend on what the mask leaves."""

    def __init__(self, mask, hidden=32):
        super().__init__()
        self.register_buffer("mask", mask)
        self.net = nn.Sequential(nn.Linear(2, hidden), nn.LeakyReLU(), nn.Linear(hidden, hidden),
                                 nn.LeakyReLU(), nn.Linear(hidden, 4))
        self.scale = nn.Parameter(torch.zeros(2))

    def s_t(self, x):
        s, t = self.net(x * self.mask).chunk(2, dim=-1)
        free = 1 - self.mask
        return torch.tanh(s) * torch.exp(self.scale) * free, t * free

    def forward(self, x):
        s, t = self.s_t(x)
        return x * s.exp() + t, s.sum(-1)

    def inverse(self, y):
        s, t = self.s_t(y)
        return (y - t) * (-s).exp()


class ActNorm(nn.Module):
    """Shift and scale of each number, set by the first batch, learnt from then on."""

    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(1, 2))
        self.shift = nn.Parameter(torch.zeros(1, 2))
        self.register_buffer("initialized", torch.tensor(False))

    def forward(self, x):
        if self.training and not self.initialized.item():
            with torch.no_grad():
                self.log_scale.copy_(-x.std(0, keepdim=True).log())
                self.shift.copy_(-x.mean(0, keepdim=True) * self.log_scale.exp())
                self.initialized.fill_(True)
        return x * self.log_scale.exp() + self.shift, self.log_scale.sum().expand(x.shape[0])

    def inverse(self, y):
        return (y - self.shift) / self.log_scale.exp()


class RealNVP(nn.Module):
    def __init__(self, n_layers=4):
        super().__init__()
        masks = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        self.layers = nn.ModuleList()
        for i in range(n_layers):
            self.layers.extend([ActNorm(), Coupling(masks[i % 2].clone())])

    def log_prob(self, x):
        total = x.new_zeros(x.shape[0])
        for layer in self.layers:
            x, log_det = layer(x)
            total = total + log_det
        return total - 0.5 * (x ** 2 + math.log(2 * math.pi)).sum(dim=1)

    @torch.no_grad()
    def sample(self, z):
        for layer in reversed(self.layers):
            z = layer.inverse(z)
        return z


model = RealNVP()
with torch.no_grad():
    for name, p in model.named_parameters():
        if ".net." in name:
            p.copy_(torch.tensor(rng.normal(0, 0.25, p.shape) * (p.ndim == 2)))
print("seed", seed, "parameters", sum(p.numel() for p in model.parameters()))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-5)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[12, 17], gamma=0.3)

losses = []
for i in range(20):
    x = two_moons(128)
    loss = -model.log_prob(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    losses.append(loss.detach().item())
    if not i % 5:
        print(f"{i}: {losses[-1]:.3f} nats")

model.eval()
drawn = model.sample(torch.tensor(rng.standard_normal((200, 2)), dtype=torch.float32))
cells = ((drawn.clamp(-1.5, 1.49) + 1.5) * 2).floor().long()
counts = torch.zeros(36, dtype=torch.long).scatter_add(0, cells[:, 1] * 6 + cells[:, 0],
                                                       torch.ones(200, dtype=torch.long))
result = counts.view(6, 6).tolist()
x = two_moons(5)
y = x
for layer in model.layers:
    y, _ = layer(y)
assert torch.allclose(model.sample(y), x, atol=1e-4)
print(*result, sep="\n")
