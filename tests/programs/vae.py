"""A variational autoencoder of small pictures: two bright spots on a dark ground."""

import numpy as np
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

seed = 11
rng = np.random.default_rng(seed)


class Spots(Dataset):
    def __init__(self, n, side=8):
        y, x = np.mgrid[:side, :side]
        cy, cx = rng.uniform(1, side - 1, (2, n, 2, 1, 1))
        spots = np.exp(-((y - cy) ** 2 + (x - cx) ** 2) / 2)
        self.images = spots.max(1).astype(np.float32)[:, None]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i], 0


class VAE(nn.Module):
    def __init__(self):
        super(VAE, self).__init__()

        self.fc1 = nn.Linear(64, 48)
        self.fc21 = nn.Linear(48, 4)
        self.fc22 = nn.Linear(48, 4)
        self.fc3 = nn.Linear(4, 48)
        self.fc4 = nn.Linear(48, 64)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.tensor(rng.standard_normal(std.shape), dtype=std.dtype, device=std.device)
        return mu + eps * std

    def decode(self, z):
        h3 = F.relu(self.fc3(z))
        return torch.sigmoid(self.fc4(h3))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 64))
        z = self.reparameterize(mu, logvar)
        return self.decode(z), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 64), reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


train_loader = DataLoader(Spots(128), batch_size=32, shuffle=False)
model = VAE()
for module in model.children():
    fan_in = module.in_features
    weight = rng.standard_normal((module.out_features, fan_in)) / np.sqrt(fan_in)
    module.weight = nn.Parameter(torch.tensor(weight).float())
    nn.init.zeros_(module.bias)
optimizer = optim.Adam(model.parameters(), lr=1e-2)

losses = []
print("seed", seed)
for epoch in range(5):
    model.train()
    train_loss = 0
    for data, _ in train_loader:
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
        losses.append(loss.item() / len(data))
    print("epoch {}: average loss {:.4f}".format(epoch, train_loss / len(train_loader.dataset)))

with torch.no_grad():
    sample = torch.tensor(rng.standard_normal((3, 4)), dtype=torch.float32)
    sample = model.decode(sample).cpu().view(3, 8, 8)
result = ["".join(" .:*#"[int(5 * v)] for v in row) for image in sample for row in image]
print(*result, sep="\n")
