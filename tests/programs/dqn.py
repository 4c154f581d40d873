"""Deep Q-learning in a corridor: replay memory, a target network that follows slowly."""

import math
from collections import deque, namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

seed = 64
rng = np.random.default_rng(seed)

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))
n_cells, BATCH_SIZE, GAMMA, TAU, LR = 7, 32, 0.8, 0.1, 1e-2


class ReplayMemory(object):
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        return [self.memory[i] for i in rng.choice(len(self.memory), batch_size, replace=False)]

    def __len__(self):
        return len(self.memory)


class DQN(nn.Module):
    def __init__(self, n_observations, n_actions):
        super(DQN, self).__init__()
        self.layer1 = nn.Linear(n_observations, 24)
        self.layer2 = nn.Linear(24, 24)
        self.layer3 = nn.Linear(24, n_actions)

    def forward(self, x):
        x = F.relu(self.layer1(x))
        x = F.relu(self.layer2(x))
        return self.layer3(x)


def move(cell, action):
    """A door at the right end, a hole at the left one. Returns (cell or None, reward)."""
    cell += 1 if action == 1 else -1
    if cell == n_cells - 1:
        return None, 1.0
    return (None, -1.0) if cell == 0 else (cell, -0.05)


def observe(cell):
    return torch.tensor(np.eye(n_cells)[cell], dtype=torch.float32).unsqueeze(0)


def select_action(state):
    global steps_done
    eps_threshold = 0.1 + 0.8 * math.exp(-1.0 * steps_done / 60)
    steps_done += 1
    if rng.random() > eps_threshold:
        with torch.no_grad():
            return policy_net(state).max(1).indices.view(1, 1)
    return torch.tensor([[int(rng.integers(2))]], dtype=torch.long)


def optimize_model():
    if len(memory) < BATCH_SIZE:
        return
    batch = Transition(*zip(*memory.sample(BATCH_SIZE)))
    non_final_mask = torch.tensor(tuple(map(lambda s: s is not None, batch.next_state)),
                                  dtype=torch.bool)
    non_final_next_states = torch.cat([s for s in batch.next_state if s is not None])
    state_batch = torch.cat(batch.state)
    action_batch = torch.cat(batch.action)
    reward_batch = torch.cat(batch.reward)

    state_action_values = policy_net(state_batch).gather(1, action_batch)
    next_state_values = torch.zeros(BATCH_SIZE)
    with torch.no_grad():
        next_state_values[non_final_mask] = target_net(non_final_next_states).max(1).values
    expected_state_action_values = (next_state_values * GAMMA) + reward_batch

    criterion = nn.SmoothL1Loss()
    loss = criterion(state_action_values, expected_state_action_values.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 1)
    optimizer.step()
    losses.append(loss.item())


policy_net, target_net = DQN(n_cells, 2), DQN(n_cells, 2)
for p in policy_net.parameters():
    p.data.copy_(torch.tensor(rng.normal(0, 0.4, p.shape)))
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=LR, amsgrad=True)
memory = ReplayMemory(200)
steps_done = 0

losses = []
while len(losses) < 20:
    cell = int(rng.integers(1, n_cells - 1))
    while cell is not None and len(losses) < 20:
        state = observe(cell)
        action = select_action(state)
        cell, reward = move(cell, action.item())
        next_state = None if cell is None else observe(cell)
        memory.push(state, action, next_state, torch.tensor([reward]))
        optimize_model()

        target_state = target_net.state_dict()
        policy_state = policy_net.state_dict()
        for key in policy_state:
            target_state[key] = policy_state[key] * TAU + target_state[key] * (1 - TAU)
        target_net.load_state_dict(target_state)

with torch.no_grad():
    q = policy_net(torch.eye(n_cells)[1:-1])
result = "".join("<>"[a] for a in q.argmax(dim=1).tolist())
print("seed", seed, "steps", steps_done, "in each cell:", result)
