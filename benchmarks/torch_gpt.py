"""minidl's GPT in PyTorch's own modules: the same names, weights, outputs and training step."""

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.head_width = width // n_heads  # with tensor parallelism a rank has only some heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = (z.view(B, T, -1, self.head_width).transpose(1, 2)
                   for z in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(B, T, -1))


class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, n_heads)
        self.norm2, self.feed_forward = nn.LayerNorm(width), FeedForward(width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocab_size, context, n_layers, n_heads, width):
        super().__init__()
        self.token, self.position = nn.Embedding(vocab_size, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, n_heads) for _ in range(n_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        self.head.weight = self.token.weight

    def forward(self, ids):
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make(weights, *shape):
    """Returns a GPT with the weights of minidl's state_dict."""
    model = GPT(*shape)
    model.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})
    return model


def saved_bytes(forward, parameters=()):
    """Returns the bytes that autograd saves in `forward()`. Each storage counts once, and
    parameters do not count."""
    storages = {}

    def pack(t):
        storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = forward()
    for p in parameters:
        storages.pop(p.untyped_storage().data_ptr(), None)
    del result  # until here the graph keeps the tensors alive, so no address is used twice
    return sum(storages.values())


def step_of(model, optimizer, x, y):
    """Returns the same as small_gpt.step_of, in PyTorch. x and y are NumPy arrays."""
    x, y = torch.from_numpy(x), torch.from_numpy(y)

    def step():
        optimizer.zero_grad()
        logits = model(x)
        value = F.cross_entropy(logits.view(-1, logits.shape[-1]), y)
        value.backward()
        optimizer.step()
        return value.item()

    return step
