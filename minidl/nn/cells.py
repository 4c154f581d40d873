"""One step of a recurrent layer: RNNCell, LSTMCell, GRUCell. The user writes the loop over time.

    for x in inputs:                     x (N, C) or (C,); h, c (N, H) or (H,)
        h, c = cell(x, (h, c))           cell(x) begins with states of zeros

N is the number of samples, C is input_size, and H is hidden_size.
The forward of a cell computes the cell's formula with ops. The layers of recurrent.py are faster,
because one op computes all steps. Names, shapes and order of the weights are PyTorch's: weight_ih
(k H, C), weight_hh (k H, H), bias_ih and bias_hh (k H,). k is 1 for RNN, 4 for LSTM (i, f, g, o), 3
for GRU (r, z, n).
Test: tests/nn/test_cells.py
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from minidl.nn import functional as F
from minidl.nn import init
from minidl.nn.layers import empty_parameter
from minidl.nn.module import Module
from minidl.tensor import Tensor, wrapped

if TYPE_CHECKING:
    from minidl.hints import Array
    from minidl.random import Generator


class _Cell(Module):
    parts = 1  # each weight has parts * hidden_size rows

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, *,
                 generator: Generator | None = None):
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        width = self.parts * hidden_size
        self.weight_ih = empty_parameter(width, input_size)
        self.weight_hh = empty_parameter(width, hidden_size)
        self.register_parameter("bias_ih", empty_parameter(width) if bias else None)
        self.register_parameter("bias_hh", empty_parameter(width) if bias else None)
        bound = 1 / math.sqrt(hidden_size)
        for p in self.parameters():
            init.uniform_(p, -bound, bound, generator)

    def products(self, x, h):
        """Returns (W_ih x + b_ih, W_hh h + b_hh)."""
        return F.linear(x, self.weight_ih, self.bias_ih), F.linear(h, self.weight_hh, self.bias_hh)

    def zeros(self, x):
        """Returns the state before the first step: zeros, (N, H) or (H,)."""
        return Tensor(x._xp.zeros((*x.shape[:-1], self.hidden_size), x.dtype))

    def extra_repr(self):
        return f"{self.input_size}, {self.hidden_size}"


class RNNCell(_Cell):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh). nonlinearity="relu" uses relu in place of tanh."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True,
                 nonlinearity: str = "tanh", *, generator: Generator | None = None):
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError("RNNCell: nonlinearity must be 'tanh' or 'relu'; got "
                             f"{nonlinearity!r}")
        super().__init__(input_size, hidden_size, bias, generator=generator)
        self.nonlinearity = nonlinearity

    def forward(self, input: Array, hx: Array | None = None) -> Tensor:
        x = wrapped(input)
        from_x, from_h = self.products(x, self.zeros(x) if hx is None else hx)
        return (F.tanh if self.nonlinearity == "tanh" else F.relu)(from_x + from_h)


class LSTMCell(_Cell):
    """A cell with three gates. f is the share of the cell state c that is kept. i is the share of
    the new value g that is added to c. o is the share of tanh(c) that becomes h. A call returns
    (h', c'), the two states after the step."""
    parts = 4

    def forward(self, input: Array, hx: tuple[Array, Array] | None = None) -> tuple[Tensor, Tensor]:
        x = wrapped(input)
        h, c = (self.zeros(x), self.zeros(x)) if hx is None else hx
        from_x, from_h = self.products(x, h)
        i, f, g, o = (from_x + from_h).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


class GRUCell(_Cell):
    """A cell with two gates. r is the share of the old state h that the new value n uses. z is the
    share of h that is kept. A call returns h', the state after the step."""
    parts = 3

    def forward(self, input: Array, hx: Array | None = None) -> Tensor:
        x = wrapped(input)
        h = self.zeros(x) if hx is None else wrapped(hx)
        from_x, from_h = self.products(x, h)
        r_x, z_x, n_x = from_x.chunk(3, -1)
        r_h, z_h, n_h = from_h.chunk(3, -1)
        r, z = (r_x + r_h).sigmoid(), (z_x + z_h).sigmoid()
        n = (n_x + r * n_h).tanh()
        return n + z * (h - n)
