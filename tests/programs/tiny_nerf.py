"""A tiny NeRF: a network that gives colour and density at a point in space is fitted to pictures
of a ball, taken from several sides."""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

seed = 9458
rng = np.random.default_rng(seed)

height = width = 8
focal = 9.0
near, far = 2.0, 6.0
n_samples = 12


def camera(angle, up=0.4):
    """Camera to world, (4, 4): on a circle around the origin, looking inwards."""
    forward = np.array([math.sin(angle), up, math.cos(angle)])
    forward /= np.linalg.norm(forward)
    right = np.cross([0.0, 1.0, 0.0], forward)
    right /= np.linalg.norm(right)
    pose = np.eye(4, dtype=np.float32)
    pose[:3, :3] = np.stack([right, np.cross(forward, right), forward], axis=1)
    pose[:3, 3] = 4 * forward
    return pose


def get_rays(height, width, focal, c2w):
    i, j = torch.meshgrid(torch.arange(width, dtype=torch.float32),
                          torch.arange(height, dtype=torch.float32), indexing="xy")
    directions = torch.stack([(i - width * 0.5) / focal, -(j - height * 0.5) / focal,
                              -torch.ones_like(i)], dim=-1)
    rays_d = torch.sum(directions[..., None, :] * c2w[:3, :3], dim=-1)
    rays_o = c2w[:3, -1].expand(rays_d.shape)
    return rays_o, rays_d


def picture(pose):
    """A ball of radius 1, coloured by its normal, on black."""
    o, d = (v.numpy() for v in get_rays(height, width, focal, torch.from_numpy(pose)))
    a, b, c = (d * d).sum(-1), 2 * (o * d).sum(-1), (o * o).sum(-1) - 1
    square = b * b - 4 * a * c
    t = (-b - np.sqrt(np.maximum(square, 0))) / (2 * a)
    normal = o + t[..., None] * d
    return np.where(square[..., None] > 0, 0.5 + 0.5 * normal, 0).astype(np.float32)


def positional_encoding(x, n_frequencies=4):
    encoding = [x]
    for f in 2.0 ** torch.linspace(0.0, n_frequencies - 1, n_frequencies):
        for func in [torch.sin, torch.cos]:
            encoding.append(func(x * f))
    return torch.cat(encoding, dim=-1)


class TinyNerf(nn.Module):
    def __init__(self, width=48, encoded=3 + 3 * 2 * 4):
        super().__init__()
        self.layer1 = nn.Linear(encoded, width)
        self.layer2 = nn.Linear(width, width)
        self.layer3 = nn.Linear(width + encoded, width)
        self.out = nn.Linear(width, 4)

    def forward(self, x):
        h = F.relu(self.layer1(x))
        h = F.relu(self.layer2(h))
        h = F.relu(self.layer3(torch.cat([h, x], dim=-1)))
        return self.out(h)


def cumprod_exclusive(tensor):
    cumprod = torch.cumprod(tensor, dim=-1)
    cumprod = torch.roll(cumprod, 1, dims=-1)
    cumprod[..., 0] = 1.0
    return cumprod


def render(model, rays_o, rays_d):
    depth = torch.linspace(near, far, n_samples)
    jitter = torch.tensor(rng.random((*rays_o.shape[:-1], n_samples)), dtype=torch.float32)
    depth = depth + jitter * (far - near) / n_samples
    points = rays_o[..., None, :] + rays_d[..., None, :] * depth[..., :, None]
    raw = model(positional_encoding(points.reshape(-1, 3)))
    raw = raw.reshape(points.shape[:-1] + (4,))
    sigma = F.relu(raw[..., 3])
    rgb = torch.sigmoid(raw[..., :3])
    last = torch.tensor([1e10]).expand(depth[..., :1].shape)
    dists = torch.cat((depth[..., 1:] - depth[..., :-1], last), dim=-1)
    alpha = 1.0 - torch.exp(-sigma * dists)
    weights = alpha * cumprod_exclusive(1.0 - alpha + 1e-10)
    rgb_map = (weights[..., None] * rgb).sum(dim=-2)
    depth_map = (weights * depth).sum(dim=-1)
    return rgb_map, depth_map, weights.sum(-1)


poses = [camera(angle) for angle in np.linspace(0, 2 * math.pi, 5, endpoint=False)]
images = torch.from_numpy(np.stack([picture(pose) for pose in poses]))
poses = torch.from_numpy(np.stack(poses))

model = TinyNerf()
for p in model.parameters():
    fan_in = p.shape[-1]
    p.data.copy_(torch.from_numpy(rng.normal(0, 1.4 / math.sqrt(fan_in), p.shape) * (p.dim() > 1)))
model.out.bias.data[3] = 0.3
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

losses, psnrs = [], []
for i in range(20):
    k = int(rng.integers(4))
    rays_o, rays_d = get_rays(height, width, focal, poses[k])
    rgb, depth, acc = render(model, rays_o, rays_d)
    loss = F.mse_loss(rgb, images[k])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    psnrs.append(-10.0 * math.log10(loss.item()))
    if i % 5 == 0:
        print("iteration", i, "loss", losses[-1], "psnr", psnrs[-1])

with torch.no_grad():
    rgb, depth, acc = render(model, *get_rays(height, width, focal, poses[4]))
result = ["".join(" .:*#"[min(4, int(5 * v))] for v in row) for row in rgb.mean(-1).tolist()]
print("seed", seed, "psnr of the picture left out", -10 * math.log10(F.mse_loss(rgb, images[4])))
print(*result, sep="\n")
