"""A crab learns to stay at its stone: one network chooses its step, a second head says how good its
place is."""

from collections import namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

seed = 543
rng = np.random.default_rng(seed)

SavedAction = namedtuple("SavedAction", ["log_prob", "value"])


class Beach:
    """The crab's place is a number, the stone lies at 0. The crab goes left, stays, or goes right.
    Each step is worth 1 less the distance from the stone. Waves push the crab about."""

    def reset(self):
        self.x, self.steps = rng.uniform(-1, 1), 0
        return self.state()

    def state(self):
        return np.array([self.x, abs(self.x)], np.float32)

    def step(self, action):
        self.x += 0.2 * (action - 1) + rng.normal(0, 0.03)
        self.steps += 1
        done = abs(self.x) > 2 or self.steps == 12
        return self.state(), 1 - abs(self.x), done, {}


class Policy(nn.Module):
    def __init__(self):
        super(Policy, self).__init__()
        self.affine1 = nn.Linear(2, 32)
        self.action_head = nn.Linear(32, 3)
        self.value_head = nn.Linear(32, 1)
        self.saved_actions = []
        self.rewards = []

    def forward(self, x):
        x = F.relu(self.affine1(x))
        action_prob = F.softmax(self.action_head(x), dim=-1)
        state_values = self.value_head(x)
        return action_prob, state_values


def select_action(state):
    state = torch.from_numpy(state).float()
    probs, state_value = model(state)
    action = int((rng.random() > probs.detach().cumsum(0)[:-1]).sum())
    model.saved_actions.append(SavedAction(torch.log(probs[action]), state_value))
    return action


def finish_episodes():
    R = 0
    policy_losses, value_losses, returns = [], [], []
    for r, done in model.rewards[::-1]:
        R = r + gamma * R * (not done)
        returns.insert(0, R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + eps)
    for (log_prob, value), R in zip(model.saved_actions, returns):
        advantage = R - value.item()
        policy_losses.append(-log_prob * advantage)
        value_losses.append(F.smooth_l1_loss(value, torch.tensor([R])))
    optimizer.zero_grad()
    loss = torch.stack(policy_losses).mean() + torch.stack(value_losses).mean()
    loss.backward()
    optimizer.step()
    del model.rewards[:]
    del model.saved_actions[:]
    return loss.item()


env = Beach()
model = Policy()
for name, p in model.named_parameters():
    p.data.copy_(torch.tensor(rng.normal(0, 0.3 if "head" in name else 0.7, p.shape)))
optimizer = optim.Adam(model.parameters(), lr=5e-2)
eps = np.finfo(np.float32).eps.item()
gamma = 0.5

losses, episode_rewards = [], []
for i_update in range(20):
    ep_reward = 0
    for _ in range(10):
        state, done = env.reset(), False
        while not done:
            action = select_action(state)
            state, reward, done, _ = env.step(action)
            model.rewards.append((reward, done))
            ep_reward += reward / 10
    losses.append(finish_episodes())
    episode_rewards.append(ep_reward)
    if i_update % 5 == 0:
        print("update {}\treward {:.2f}\tloss {:.2f}".format(i_update, ep_reward, losses[-1]))

model.eval()
result = []
for _ in range(3):
    state, done = env.reset(), False
    actions = ""
    while not done:
        with torch.no_grad():
            probs, _ = model(torch.as_tensor(state))
        action = probs.argmax().item()
        actions += "<.>"[action]
        state, _, done, _ = env.step(action)
    result.append(actions)
print("seed", seed, *result, sep="\n")
