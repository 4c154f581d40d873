"""A convolutional network reads digits as a pocket calculator shows them, shifted and noisy."""

import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Subset, TensorDataset

seed = 2
rng = np.random.default_rng(seed)

# which of the seven bars shine: top, left above, right above, middle, left below, right below, low
BARS = ["1110111", "0010010", "1011101", "1011011", "0111010", "1101011", "1101111", "1010010",
        "1111111", "1111011"]
PLACES = [(slice(0, 1), slice(1, 5)), (slice(1, 4), slice(0, 1)), (slice(1, 4), slice(5, 6)),
          (slice(4, 5), slice(1, 5)), (slice(5, 8), slice(0, 1)), (slice(5, 8), slice(5, 6)),
          (slice(8, 9), slice(1, 5))]


def digit(number):
    image = rng.normal(0.1, 0.1, (12, 12))
    top, left = rng.integers(0, 3), rng.integers(2, 5)
    for bar, (rows, columns) in zip(BARS[number], PLACES):
        if bar == "1":
            image[top:top + 9, left:left + 6][rows, columns] += 0.9
    return image.clip(0, 1)


labels = rng.integers(0, 10, 240)
images = np.stack([digit(number) for number in labels]).astype(np.float32)
images = (images - images.mean()) / images.std()
data = TensorDataset(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels))
train_loader = DataLoader(Subset(data, range(160)), batch_size=16)
test_loader = DataLoader(Subset(data, range(160, 240)), batch_size=40)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 1, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, kernel_size=3, padding=1)
        self.dropout1 = nn.Dropout(0.0)
        self.fc1 = nn.Linear(16 * 3 * 3, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(x, 2)
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = self.fc2(x)
        return F.log_softmax(x, dim=1)


def train(model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if batch_idx % 5 == 0:
            print("epoch {}: [{}/{}] loss {:.4f}".format(
                epoch, batch_idx * len(data), len(train_loader.dataset), loss.item()))


def test(model, device, test_loader):
    model.eval()
    test_loss = 0
    correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            pred = output.argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()
    test_loss /= len(test_loader.dataset)
    print(f"test: loss {test_loss:.4f}, accuracy {correct}/{len(test_loader.dataset)}")
    return correct


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
print("seed", seed, "on", device)
model = Net().to(device)
with torch.no_grad():
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            bound = (3 / module.weight[0].numel()) ** 0.5
            weight = rng.uniform(-bound, bound, module.weight.shape)
            module.weight.copy_(torch.from_numpy(weight))
            if module.bias is not None:
                nn.init.constant_(module.bias, 0.01)
optimizer = optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4, nesterov=True)
scheduler = StepLR(optimizer, step_size=1, gamma=0.7)

losses = []
for epoch in range(1, 3):
    train(model, device, train_loader, optimizer, epoch)
    test(model, device, test_loader)
    scheduler.step()

again = Net()
with tempfile.TemporaryDirectory() as folder:
    torch.save(model.state_dict(), f"{folder}/digits.pt")
    again.load_state_dict(torch.load(f"{folder}/digits.pt"))
result = test(again, device, test_loader)
