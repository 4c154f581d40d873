"""Who belongs to which club? A graph network is told of six members, and finds the others."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

seed = 17
rng = np.random.default_rng(seed)

n_clubs, n_each = 3, 15
n = n_clubs * n_each
club = np.repeat(np.arange(n_clubs), n_each)
likely = np.where(club[:, None] == club, 0.3, 0.02)
friends = np.triu(rng.random((n, n)) < likely, 1)
edge_index = torch.tensor(np.stack(np.nonzero(friends | friends.T)))
x = torch.tensor(rng.normal(0, 1, (n, 8)) + 0.7 * np.eye(n_clubs, 8)[club], dtype=torch.float64)
y = torch.tensor(club)
train_mask = torch.zeros(n, dtype=torch.bool)
train_mask[torch.arange(0, n, 7)] = True
test_mask = ~train_mask


def normalized_adjacency(edge_index, n):
    adj = torch.zeros(n, n)
    adj[edge_index[0], edge_index[1]] = 1.0
    adj = adj + torch.eye(n)
    d = adj.sum(1).pow(-0.5)
    return d[:, None] * adj * d[None, :]


class GraphConvolution(nn.Module):
    """Kipf and Welling's layer: a matrix product with the normalised adjacency."""

    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.empty(out_features))
        self.reset_parameters()

    def reset_parameters(self):
        stdv = 1.0 / self.weight.size(1) ** 0.5
        with torch.no_grad():
            self.weight.copy_(torch.tensor(rng.uniform(-stdv, stdv, self.weight.shape)))
            self.bias.zero_()

    def forward(self, input, adj):
        support = torch.mm(input, self.weight)
        return torch.mm(adj, support) + self.bias


class SAGEConv(nn.Module):
    """Messages along the edges, summed at their ends with index_add, divided by the degree."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin_l = nn.Linear(in_channels, out_channels)
        self.lin_r = nn.Linear(in_channels, out_channels, bias=False)
        for p in self.parameters():
            p.data.copy_(torch.tensor(rng.normal(0, 0.3, p.shape)))

    def forward(self, x, edge_index):
        src, dst = edge_index
        messages = x[src]
        out = torch.zeros_like(x).index_add_(0, dst, messages)
        ones = torch.ones(dst.size(0), dtype=x.dtype)
        degree = x.new_zeros(x.size(0)).scatter_add(0, dst, ones)
        out = out / degree.clamp(min=1).unsqueeze(-1)
        return self.lin_l(out) + self.lin_r(x)


class GAT(nn.Module):
    """Attention over neighbours: a softmax of each row, with -inf where there is no edge."""

    def __init__(self, in_features, out_features, alpha=0.2):
        super().__init__()
        self.W = nn.Parameter(torch.tensor(rng.normal(0, 0.3, (in_features, out_features))).float())
        self.a = nn.Parameter(torch.tensor(rng.normal(0, 0.3, (2 * out_features, 1))).float())
        self.leakyrelu = nn.LeakyReLU(alpha)

    def forward(self, h, adj):
        Wh = torch.mm(h, self.W)
        k = self.W.shape[1]
        e = self.leakyrelu(torch.matmul(Wh, self.a[:k, :]) + torch.matmul(Wh, self.a[k:, :]).T)
        attention = torch.where(adj > 0, e, -9e15 * torch.ones_like(e))
        return F.elu(torch.matmul(F.softmax(attention, dim=1), Wh))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gc1 = GraphConvolution(8, 16)
        self.sage = SAGEConv(16, 16)
        self.gat = GAT(16, 16)
        self.gc2 = GraphConvolution(16, n_clubs)

    def forward(self, x, edge_index, adj):
        x = F.relu(self.gc1(x, adj))
        x = F.relu(self.sage(x, edge_index))
        x = F.dropout(x, p=0.0, training=self.training)
        x = self.gat(x, adj)
        return F.log_softmax(self.gc2(x, adj), dim=1)


adj = normalized_adjacency(edge_index, n).double()
model = Net().double()
optimizer = torch.optim.Adam([
    dict(params=model.gc1.parameters(), weight_decay=5e-4),
    dict(params=[p for m in (model.sage, model.gat, model.gc2) for p in m.parameters()]),
], lr=0.02)

losses = []
print("seed", seed, "members", n, "edges", edge_index.shape[1] // 2)
for _ in range(20):
    model.train()
    optimizer.zero_grad()
    out = model(x, edge_index, adj)
    loss = F.nll_loss(out[train_mask], y[train_mask])
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

model.eval()
pred = model(x, edge_index, adj).argmax(dim=1)
correct = (pred[test_mask] == y[test_mask]).sum()
print(f"accuracy {int(correct)} of {int(test_mask.sum())}")
result = pred.tolist(), int(correct)
