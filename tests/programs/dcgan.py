"""Two networks play: one draws crosses and squares, the other tells them from real ones."""

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

seed = 999
rng = np.random.default_rng(seed)

image_size, nc, nz, ngf, ndf = 16, 1, 8, 8, 8


def picture():
    image = -np.ones((image_size, image_size), np.float32)
    top, left = rng.integers(1, 6, 2)
    box = image[top:top + 9, left:left + 9]
    if rng.random() < 0.5:
        box[3:6], box[:, 3:6] = 1, 1
    else:
        box[:], box[2:-2, 2:-2] = 1, -1
    return image[None]


dataset = TensorDataset(torch.tensor(np.stack([picture() for _ in range(80)])))
dataloader = DataLoader(dataset, batch_size=16, shuffle=False, num_workers=0)
device = torch.device("cpu")


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        m.weight.data.copy_(torch.tensor(rng.normal(0.0, 0.1, m.weight.shape)))
    elif classname.find("BatchNorm") != -1:
        m.weight.data.copy_(torch.tensor(rng.normal(1.0, 0.02, m.weight.shape)))
        nn.init.constant_(m.bias.data, 0)


class Generator(nn.Module):
    def __init__(self):
        super(Generator, self).__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf, nc, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, input):
        return self.main(input)


class Discriminator(nn.Module):
    def __init__(self):
        super(Discriminator, self).__init__()
        self.main = nn.Sequential(
            nn.Conv2d(nc, ndf, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ndf * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, input):
        return self.main(input)


netG = Generator().to(device)
netG.apply(weights_init)
netD = Discriminator().to(device)
netD.apply(weights_init)
print(netG)

criterion = nn.BCELoss()
real_label, fake_label = 1.0, 0.0
optimizerD = optim.Adam(netD.parameters(), lr=0.002, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=0.002, betas=(0.5, 0.999))


def noise(n):
    return torch.tensor(rng.standard_normal((n, nz, 1, 1)), dtype=torch.float32, device=device)


fixed_noise = noise(2)
losses, G_losses, D_losses = [], [], []
for epoch in range(4):
    for data in dataloader:
        # the discriminator: log(D(x)) + log(1 - D(G(z))) grows
        netD.zero_grad()
        real_cpu = data[0].to(device)
        b_size = real_cpu.size(0)
        label = torch.full((b_size,), real_label, dtype=torch.float, device=device)
        output = netD(real_cpu).view(-1)
        errD_real = criterion(output, label)
        errD_real.backward()
        D_x = output.mean().item()

        fake = netG(noise(b_size))
        label.fill_(fake_label)
        output = netD(fake.detach()).view(-1)
        errD_fake = criterion(output, label)
        errD_fake.backward()
        D_G_z1 = output.mean().item()
        errD = errD_real + errD_fake
        optimizerD.step()

        # the generator: log(D(G(z))) grows
        netG.zero_grad()
        label.fill_(real_label)
        output = netD(fake).view(-1)
        errG = criterion(output, label)
        errG.backward()
        D_G_z2 = output.mean().item()
        optimizerG.step()

        G_losses.append(errG.item())
        D_losses.append(errD.item())
        losses.append(errD.item())
    print("[%d] Loss_D: %.4f Loss_G: %.4f D(x): %.4f D(G(z)): %.4f / %.4f"
          % (epoch, errD.item(), errG.item(), D_x, D_G_z1, D_G_z2))

netG.eval()
with torch.no_grad():
    fake = netG(fixed_noise).detach().cpu()
result = (fake > 0).int().sum((1, 2, 3)).tolist(), np.round(G_losses[-1], 3).item()
print("seed", seed, result)
