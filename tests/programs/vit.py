"""A vision transformer finds in which quarter of a picture the cross is."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

seed = 16
rng = np.random.default_rng(seed)


def picture(quarter):
    image = rng.normal(0, 0.1, (1, 16, 16))
    top, left = 8 * (quarter // 2) + rng.integers(0, 4), 8 * (quarter % 2) + rng.integers(0, 4)
    image[0, top + 2, left:left + 5] += 2
    image[0, top:top + 5, left + 2] += 2
    return image


class PatchEmbedding(nn.Module):
    def __init__(self, patch=4, dim=24, n_patches=16):
        super().__init__()
        self.proj = nn.Conv2d(1, dim, kernel_size=patch, stride=patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, n_patches + 1, dim))

    def forward(self, x):
        x = self.proj(x).flatten(2).transpose(1, 2)
        cls_tokens = self.cls_token.expand(x.shape[0], -1, -1)
        x = torch.cat((cls_tokens, x), dim=1)
        return x + self.pos_embed


class Attention(nn.Module):
    def __init__(self, dim, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attn = (q @ k.transpose(-2, -1)) * self.scale
        attn = attn.softmax(dim=-1)
        self.last = attn[:, :, 0, 1:].mean(1).detach()
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class LayerScale(nn.Module):
    def __init__(self, dim, init_values=0.5):
        super().__init__()
        self.gamma = nn.Parameter(init_values * torch.ones(dim))

    def forward(self, x):
        return x * self.gamma


class Block(nn.Module):
    def __init__(self, dim, mlp_ratio=2.0, norm_layer=nn.LayerNorm):
        super().__init__()
        hidden = int(dim * mlp_ratio)
        self.norm1, self.norm2 = norm_layer(dim), norm_layer(dim)
        self.attn = Attention(dim)
        self.ls1, self.ls2 = LayerScale(dim), LayerScale(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(approximate="tanh"),
                                 nn.Dropout(0.0), nn.Linear(hidden, dim))

    def forward(self, x):
        x = x + self.ls1(self.attn(self.norm1(x)))
        x = x + self.ls2(self.mlp(self.norm2(x)))
        return x


class VisionTransformer(nn.Module):
    def __init__(self, dim=24, depth=2, num_classes=4):
        super().__init__()
        self.patch_embed = PatchEmbedding(dim=dim)
        self.blocks = nn.Sequential(*[Block(dim) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, x):
        x = self.blocks(self.patch_embed(x))
        return self.head(self.norm(x)[:, 0])


quarters = rng.integers(0, 4, 192)
images = torch.from_numpy(np.stack([picture(q) for q in quarters])).to(torch.float32)
dataset = TensorDataset(images, torch.from_numpy(quarters))
test_images, test_labels = images[160:], torch.from_numpy(quarters[160:])

model = VisionTransformer()
for name, p in model.named_parameters():
    if p.dim() > 1:
        fan_in = int(np.prod(p.shape[1:])) if "proj" in name or "weight" in name else 3
        p.data.copy_(torch.tensor(rng.normal(0, fan_in ** -0.5, tuple(p.shape))))
    elif name.endswith("bias"):
        p.data.zero_()
print("seed", seed, "parameters", sum(p.numel() for p in model.parameters()))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.05)
scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [
    torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.2, total_iters=4),
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=16),
], milestones=[4])

losses = []
for epoch in range(2):
    for images_, labels in DataLoader(dataset, batch_size=16, sampler=range(160)):
        # mixup: two pictures in one, and both labels
        lam = rng.beta(0.1, 0.1)
        index = torch.from_numpy(rng.permutation(images_.size(0)))
        mixed = lam * images_ + (1 - lam) * images_[index]
        optimizer.zero_grad()
        output = model(mixed)
        loss = (lam * F.cross_entropy(output, labels)
                + (1 - lam) * F.cross_entropy(output, labels[index]))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: loss {losses[-1]:.3f}, rate {scheduler.get_last_lr()[0]:.1e}")

model.eval()
with torch.no_grad():
    pred = model(test_images).max(dim=1)[1]
right = (pred == test_labels).float().mean().item()
looked_at = model.blocks[-1].attn.last.argmax(dim=1)
result = right, pred.tolist(), looked_at.tolist()
print("right:", right)
