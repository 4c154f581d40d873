"""A small residual network tells stripes, checks and spots apart, at a rate that has one cycle."""

import numpy as np
import torch
import torch.nn as nn
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset

seed = 50
rng = np.random.default_rng(seed)


class Patterns(Dataset):
    """Pictures (3, 12, 12): stripes that stand, stripes that lie, checks, spots."""

    def __init__(self, n, transform=None):
        self.labels = rng.integers(0, 4, n)
        self.images = [self.draw(label) for label in self.labels]
        self.transform = transform

    def draw(self, label):
        y, x = np.mgrid[:12, :12] + rng.integers(0, 4, 2)[:, None, None]
        shape = [x // 2 % 2, y // 2 % 2, (x // 2 + y // 2) % 2, (x % 4 < 2) * (y % 4 < 2)][label]
        colour = rng.uniform(0.3, 1, 3)[:, None, None]
        return (shape * colour + rng.normal(0, 0.2, (3, 12, 12))).astype(np.float32)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        image = torch.from_numpy(self.images[idx])
        if self.transform:
            image = self.transform(image)
        return {"image": image, "label": int(self.labels[idx])}


def conv3x3(in_planes: int, out_planes: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_planes, out_planes, kernel_size=3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inplanes, planes, stride=1, downsample=None):
        super().__init__()
        self.conv1 = conv3x3(inplanes, planes, stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU()
        self.conv2 = conv3x3(planes, planes)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, block, layers, num_classes):
        super().__init__()
        self.inplanes = 8
        self.conv1 = conv3x3(3, 8)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = self._make_layer(block, 8, layers[0])
        self.layer2 = self._make_layer(block, 16, layers[1], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(16 * block.expansion, num_classes)

    def _make_layer(self, block, planes, blocks, stride=1):
        downsample = None
        if stride != 1 or self.inplanes != planes * block.expansion:
            downsample = nn.Sequential(
                nn.Conv2d(self.inplanes, planes * block.expansion, 1, stride, bias=False),
                nn.BatchNorm2d(planes * block.expansion),
            )
        layers = [block(self.inplanes, planes, stride, downsample)]
        self.inplanes = planes * block.expansion
        for _ in range(1, blocks):
            layers.append(block(self.inplanes, planes))
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer2(self.layer1(x))
        x = torch.flatten(self.avgpool(x), 1)
        return self.fc(x)


def normalize(image):
    return (image - image.mean((1, 2), keepdim=True)) / image.std((1, 2), keepdim=True)


def accuracy(output, target, topk=(1,)):
    maxk = max(topk)
    _, pred = output.topk(maxk, 1, True, True)
    pred = pred.t()
    correct = pred.eq(target.view(1, -1).expand_as(pred))
    return [correct[:k].reshape(-1).float().sum(0).item() for k in topk]


train_loader = DataLoader(Patterns(160, normalize), batch_size=16)
val_loader = DataLoader(Patterns(48, normalize), batch_size=48)
model = ResNet(BasicBlock, [1, 2], num_classes=4)
for m in model.modules():
    if isinstance(m, nn.Conv2d):
        fan_out = m.weight.shape[0] * m.weight.shape[2] * m.weight.shape[3]
        m.weight.data.copy_(torch.tensor(rng.normal(0, (2 / fan_out) ** 0.5, m.weight.shape)))
    elif isinstance(m, nn.BatchNorm2d):
        nn.init.constant_(m.weight, 1)
        nn.init.constant_(m.bias, 0)
    elif isinstance(m, nn.Linear):
        m.weight.data.copy_(torch.tensor(rng.normal(0, 0.1, m.weight.shape)))
        m.bias.data.zero_()
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
epochs = 2
scheduler = OneCycleLR(optimizer, max_lr=0.1, epochs=epochs, steps_per_epoch=len(train_loader))

losses = []
for epoch in range(epochs):
    model.train()
    for batch in train_loader:
        images, target = batch["image"], batch["label"]
        output = model(images)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())

    model.eval()
    with torch.no_grad():
        for batch in val_loader:
            output = model(batch["image"])
            acc1, acc2 = accuracy(output, batch["label"], topk=(1, 2))
    print(f"seed {seed}, epoch {epoch}: right {acc1}, among the first two {acc2}, of 48")

result = acc1, acc2, model(batch["image"]).softmax(1).argmax(1).tolist()
