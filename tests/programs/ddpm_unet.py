"""A small U-Net learns to take noise from pictures of rings, and draws rings from noise."""

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

seed = 31
rng = np.random.default_rng(seed)

timesteps = 50


def noise_like(shape):
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))


def rings(n, side=8):
    y, x = np.mgrid[:side, :side]
    cy, cx = rng.uniform(3, side - 4, (2, n, 1, 1))
    radius = rng.uniform(1.5, 3, (n, 1, 1))
    distance = np.sqrt((y - cy) ** 2 + (x - cx) ** 2)
    return torch.tensor(2 * np.exp(-(distance - radius) ** 2) - 1, dtype=torch.float32)[:, None]


betas = torch.linspace(1e-3, 0.2, timesteps)
alphas = 1.0 - betas
alphas_cumprod = torch.cumprod(alphas, dim=0)
alphas_cumprod_prev = F.pad(alphas_cumprod[:-1], (1, 0), value=1.0)
sqrt_recip_alphas = torch.sqrt(1.0 / alphas)
sqrt_alphas_cumprod = torch.sqrt(alphas_cumprod)
sqrt_one_minus_alphas_cumprod = torch.sqrt(1.0 - alphas_cumprod)
posterior_variance = betas * (1.0 - alphas_cumprod_prev) / (1.0 - alphas_cumprod)


def extract(a, t, x_shape):
    out = a.gather(-1, t)
    return out.reshape(t.shape[0], *((1,) * (len(x_shape) - 1)))


def q_sample(x_start, t, noise):
    return (extract(sqrt_alphas_cumprod, t, x_start.shape) * x_start
            + extract(sqrt_one_minus_alphas_cumprod, t, x_start.shape) * noise)


class SinusoidalPositionEmbeddings(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, time):
        device = time.device
        half_dim = self.dim // 2
        embeddings = math.log(10000) / (half_dim - 1)
        embeddings = torch.exp(torch.arange(half_dim, device=device) * -embeddings)
        embeddings = time[:, None] * embeddings[None, :]
        return torch.cat((embeddings.sin(), embeddings.cos()), dim=-1)


class ResnetBlock(nn.Module):
    def __init__(self, dim, dim_out, time_dim):
        super().__init__()
        self.mlp = nn.Sequential(nn.SiLU(), nn.Linear(time_dim, dim_out * 2))
        self.proj1 = nn.Conv2d(dim, dim_out, 3, padding=1)
        self.norm1 = nn.GroupNorm(4, dim_out)
        self.proj2 = nn.Conv2d(dim_out, dim_out, 3, padding=1)
        self.norm2 = nn.GroupNorm(4, dim_out)
        self.res_conv = nn.Conv2d(dim, dim_out, 1) if dim != dim_out else nn.Identity()

    def forward(self, x, t):
        scale, shift = self.mlp(t)[:, :, None, None].chunk(2, dim=1)
        h = self.norm1(self.proj1(x))
        h = F.silu(h * (scale + 1) + shift)
        h = F.silu(self.norm2(self.proj2(h)))
        return h + self.res_conv(x)


class LinearSpatialAttention(nn.Module):
    """Every place looks at every other, once, in the middle of the net."""

    def __init__(self, dim):
        super().__init__()
        self.norm = nn.GroupNorm(1, dim)
        self.to_qkv = nn.Conv2d(dim, dim * 3, 1, bias=False)
        self.to_out = nn.Conv2d(dim, dim, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.to_qkv(self.norm(x)).reshape(b, 3, c, h * w).unbind(1)
        sim = torch.einsum("bci,bcj->bij", q, k) * c ** -0.5
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)
        out = torch.einsum("bij,bcj->bci", attn, v).reshape(b, c, h, w)
        return x + self.to_out(out)


class Unet(nn.Module):
    def __init__(self, dim=8, channels=1):
        super().__init__()
        self.init_conv = nn.Conv2d(channels, dim, 3, padding=1)
        self.time_mlp = nn.Sequential(SinusoidalPositionEmbeddings(dim), nn.Linear(dim, dim * 2),
                                      nn.GELU(), nn.Linear(dim * 2, dim * 2))
        self.down1 = ResnetBlock(dim, dim, dim * 2)
        self.down2 = nn.Conv2d(dim, dim * 2, 4, stride=2, padding=1)
        self.mid1 = ResnetBlock(dim * 2, dim * 2, dim * 2)
        self.attn = LinearSpatialAttention(dim * 2)
        self.mid2 = ResnetBlock(dim * 2, dim * 2, dim * 2)
        self.up = nn.Sequential(nn.Upsample(scale_factor=2, mode="nearest"),
                                nn.Conv2d(dim * 2, dim, 3, padding=1))
        self.up1 = ResnetBlock(dim * 2, dim, dim * 2)
        self.final_conv = nn.Conv2d(dim, channels, 1)

    def forward(self, x, time):
        x = self.init_conv(x)
        t = self.time_mlp(time)
        skip = self.down1(x, t)
        x = self.down2(skip)
        x = self.mid2(self.attn(self.mid1(x, t)), t)
        x = self.up(x)
        x = self.up1(torch.cat((x, skip), dim=1), t)
        return self.final_conv(x)


model = Unet()
for name, p in model.named_parameters():
    if "norm" not in name:
        fan_in = p[0].numel() if p.ndim > 1 else 100
        p.data.copy_(torch.from_numpy(rng.standard_normal(p.shape) / math.sqrt(fan_in)))
print("seed", seed, "parameters", sum(p.numel() for p in model.parameters()))
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)

losses = []
for step in range(20):
    optimizer.zero_grad()
    batch = rings(16)
    t = torch.from_numpy(rng.integers(0, timesteps, (16,))).long()
    noise = noise_like(batch.shape)
    predicted_noise = model(q_sample(batch, t, noise), t)
    loss = F.smooth_l1_loss(noise, predicted_noise)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step % 5 == 0:
        print("loss:", losses[-1])


@torch.no_grad()
def p_sample(model, x, t, t_index):
    betas_t = extract(betas, t, x.shape)
    sqrt_one_minus = extract(sqrt_one_minus_alphas_cumprod, t, x.shape)
    recip = extract(sqrt_recip_alphas, t, x.shape)
    model_mean = recip * (x - betas_t * model(x, t) / sqrt_one_minus)
    if t_index == 0:
        return model_mean
    return model_mean + torch.sqrt(extract(posterior_variance, t, x.shape)) * noise_like(x.shape)


model.eval()
image = noise_like((2, 1, 8, 8))
for i in reversed(range(0, timesteps)):
    image = p_sample(model, image, torch.full((2,), i, dtype=torch.long), i)
image = (image.clamp(-1, 1) + 1) * 0.5
result = ["".join(" .:*#"[int(4.99 * v)] for v in row) for row in image.reshape(16, 8).tolist()]
print(*result, sep="\n")
