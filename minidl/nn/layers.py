"""The layers a model is assembled from: linear, embedding, dropout, activations, containers.

Attribute names, shapes, defaults and initial distributions are PyTorch's, so weights can be copied
both ways. `generator=` draws the initial weights from it instead of the rank's default generator.
Test: tests/nn/test_layers.py
"""

import math

import numpy as np

from minidl.nn import functional as F
from minidl.nn import init
from minidl.nn.module import Module, Parameter
from minidl.ops.dropout import check_probability
from minidl.ops.shape import flatten


class Linear(Module):
    """y = x W^T + b;  x (..., in_features), weight (out_features, in_features).
    Weight and bias start uniform in +-1/sqrt(in_features)."""

    def __init__(self, in_features, out_features, bias=True, generator=None):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = empty_parameter(out_features, in_features)
        self.register_parameter("bias", empty_parameter(out_features) if bias else None)
        init.kaiming_uniform_(self.weight, a=math.sqrt(5), generator=generator)
        if bias:
            bound = 1 / math.sqrt(in_features) if in_features else 0.0
            init.uniform_(self.bias, -bound, bound, generator)

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self):
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class Embedding(Module):
    """weight (num_embeddings, embedding_dim), looked up by integer ids; starts as N(0, 1).
    The row `padding_idx` starts at zero and receives no gradient."""

    def __init__(self, num_embeddings, embedding_dim, padding_idx=None, generator=None):
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = padding_idx
        self.weight = empty_parameter(num_embeddings, embedding_dim)
        init.normal_(self.weight, generator=generator)
        if padding_idx is not None:
            self.weight.data[padding_idx] = 0

    def forward(self, ids):
        return F.embedding(ids, self.weight, padding_idx=self.padding_idx)

    def extra_repr(self):
        return f"{self.num_embeddings}, {self.embedding_dim}"


class Dropout(Module):
    """In training, zeroes each element with probability p and scales the rest by 1/(1-p)."""

    def __init__(self, p=0.5, generator=None):
        super().__init__()
        check_probability(p)
        self.p, self.generator = p, generator

    def forward(self, x):
        return F.dropout(x, self.p, self.training, generator=self.generator)

    def extra_repr(self):
        return f"p={self.p}"


class Flatten(Module):
    def __init__(self, start_dim=1, end_dim=-1):
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x):
        return flatten(x, self.start_dim, self.end_dim)


class Identity(Module):
    def forward(self, x):
        return x


class ReLU(Module):
    def forward(self, x):
        return F.relu(x)


class LeakyReLU(Module):
    def __init__(self, negative_slope=0.01):
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, x):
        return F.leaky_relu(x, self.negative_slope)


class ELU(Module):
    def __init__(self, alpha=1.0):
        super().__init__()
        self.alpha = alpha

    def forward(self, x):
        return F.elu(x, self.alpha)


class SiLU(Module):
    def forward(self, x):
        return F.silu(x)


class GELU(Module):
    """approximate: 'none' for the erf form, 'tanh' for the approximation of GPT-2."""

    def __init__(self, approximate="none"):
        super().__init__()
        self.approximate = approximate

    def forward(self, x):
        return F.gelu(x, approximate=self.approximate)


class Sigmoid(Module):
    def forward(self, x):
        return F.sigmoid(x)


class Tanh(Module):
    def forward(self, x):
        return F.tanh(x)


class Softplus(Module):
    def forward(self, x):
        return F.softplus(x)


class Softmax(Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return F.softmax(x, self.dim)


class Sequential(Module):
    """Modules in a chain, named "0", "1", ...; a dict gives them names of your own."""

    def __init__(self, *modules):
        super().__init__()
        named = modules[0] if len(modules) == 1 and isinstance(modules[0], dict) else {
            str(i): module for i, module in enumerate(modules)}
        for name, module in named.items():
            setattr(self, name, module)

    def forward(self, x):
        for module in self.children():
            x = module(x)
        return x

    def __getitem__(self, index):
        modules = list(self.children())[index]
        return Sequential(*modules) if isinstance(index, slice) else modules

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self.children())


class ModuleList(Module):
    """A list whose modules are registered, named "0", "1", ..."""

    def __init__(self, modules=()):
        super().__init__()
        for module in modules:
            self.append(module)

    def append(self, module):
        setattr(self, str(len(self)), module)
        return self

    def __getitem__(self, index):
        modules = list(self.children())[index]
        return ModuleList(modules) if isinstance(index, slice) else modules

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self.children())


def empty_parameter(*shape):
    """A float32 Parameter without values, which the caller fills."""
    return Parameter(np.empty(shape, np.float32))
