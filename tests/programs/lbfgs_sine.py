"""Two recurrent cells learn to go on with sine waves; LBFGS finds their weights."""

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim

seed = 20
rng = np.random.default_rng(seed)

n_waves, length = 8, 20
start = rng.integers(-40, 40, (n_waves, 1))
waves = np.sin((np.arange(length) + start) / 3.0).astype("float64")


class Sequence(nn.Module):
    def __init__(self):
        super(Sequence, self).__init__()
        self.lstm1 = nn.LSTMCell(1, 12)
        self.lstm2 = nn.LSTMCell(12, 12)
        self.linear = nn.Linear(12, 1)

    def forward(self, input, future=0):
        outputs = []
        h_t = torch.zeros(input.size(0), 12, dtype=torch.double)
        c_t = torch.zeros(input.size(0), 12, dtype=torch.double)
        h_t2 = torch.zeros(input.size(0), 12, dtype=torch.double)
        c_t2 = torch.zeros(input.size(0), 12, dtype=torch.double)

        for input_t in input.split(1, dim=1):
            h_t, c_t = self.lstm1(input_t, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs += [output]
        for _ in range(future):
            h_t, c_t = self.lstm1(output, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs += [output]
        return torch.cat(outputs, dim=1)


input, target = torch.from_numpy(waves[2:, :-1]), torch.from_numpy(waves[2:, 1:])
test_input, test_target = torch.from_numpy(waves[:2, :-1]), torch.from_numpy(waves[:2, 1:])
seq = Sequence()
seq.double()
for p in seq.parameters():
    p.data.copy_(torch.from_numpy(rng.uniform(-0.3, 0.3, p.shape)))
criterion = nn.MSELoss()
optimizer = optim.LBFGS(seq.parameters(), lr=0.8, max_iter=3)

losses = []


def closure():
    optimizer.zero_grad()
    out = seq(input)
    loss = criterion(out, target)
    loss.backward()
    return loss


print("seed", seed)
for i in range(20):
    loss = optimizer.step(closure)
    losses.append(loss.item())
    if i % 5 == 0:
        print("STEP:", i, "loss:", losses[-1])

with torch.no_grad():
    pred = seq(test_input, future=10)
    print("test loss:", criterion(pred[:, :-10], test_target).item())
result = np.round(pred[:, -10:].detach().numpy(), 3).tolist()
