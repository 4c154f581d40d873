"""An LSTM reads 16 hours of a tide and says the next one; the best model of validation is kept."""

import copy

import numpy as np
import torch
import torch.nn as nn

seed = 61
rng = np.random.default_rng(seed)

hours = np.arange(260)
tide = 3 * np.sin(2 * np.pi * hours / 12.4) + np.sin(2 * np.pi * hours / 24) + 5
tide += rng.normal(0, 0.1, len(hours))


class Scaler:
    def fit(self, x):
        self.mean, self.std = x.mean(), x.std()
        return self

    def transform(self, x):
        return (x - self.mean) / self.std

    def inverse_transform(self, x):
        return x * self.std + self.mean


def windows(series, length):
    x = np.array([series[i:i + length] for i in range(len(series) - length)])
    return torch.FloatTensor(x).unsqueeze(-1), torch.FloatTensor(series[length:]).unsqueeze(-1)


class Forecaster(nn.Module):
    def __init__(self, input_size=1, hidden_size=16, num_layers=2, output_size=1):
        super().__init__()
        self.hidden_size, self.num_layers = hidden_size, num_layers
        self.lstm = nn.LSTM(input_size, hidden_size, num_layers, batch_first=True,
                            bidirectional=True)
        self.fc = nn.Linear(2 * hidden_size, output_size)

    def forward(self, x):
        h0 = torch.zeros(self.num_layers * 2, x.size(0), self.hidden_size).to(x.device)
        c0 = torch.zeros(self.num_layers * 2, x.size(0), self.hidden_size).to(x.device)
        out, (hn, cn) = self.lstm(x, (h0, c0))
        return self.fc(out[:, -1, :])


scaler = Scaler().fit(tide[:200])
x_all, y_all = windows(scaler.transform(tide), 16)
x_train, y_train = x_all[:180], y_all[:180]
x_val, y_val = x_all[180:220], y_all[180:220]
x_test, y_test = x_all[220:], y_all[220:]

model = Forecaster()
model.load_state_dict({name: torch.FloatTensor(rng.uniform(-0.25, 0.25, p.shape))
                       for name, p in model.state_dict().items()})
criterion = nn.HuberLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="min", factor=0.5,
                                                       patience=1)

losses, best, best_state, patience = [], float("inf"), None, 0
for epoch in range(20):
    model.train()
    idx = rng.permutation(len(x_train))[:60]
    loss = criterion(model(x_train[idx]), y_train[idx])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

    model.eval()
    with torch.no_grad():
        val_loss = criterion(model(x_val), y_val).item()
    scheduler.step(val_loss)
    if val_loss < best:
        best, best_state, patience = val_loss, copy.deepcopy(model.state_dict()), 0
    else:
        patience += 1
    if epoch % 5 == 0:
        print("epoch %d, loss: %1.5f, validation: %1.5f" % (epoch, losses[-1], val_loss))

model.load_state_dict(best_state)
with torch.no_grad():
    predicted = scaler.inverse_transform(model(x_test).squeeze(-1).numpy())
    actual = scaler.inverse_transform(y_test.data.numpy().squeeze(-1))
result = [round(float(p), 3) for p in predicted[:10]], len(predicted), patience
print("seed", seed, "off by", abs(predicted - actual).mean(), result)
