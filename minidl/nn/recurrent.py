"""Recurrent layers: RNN, LSTM and GRU, with one or more layers, in one or both directions.

    input (L, N, C) ─► layer 0 ─► dropout ─► layer 1 ─► ... ─► output (L, N, H), and last states
    bidirectional: a second layer with its own weights reads the input from the end to the
                   beginning. The outputs of the two directions are joined: (L, N, 2H)

Names, shapes and order of the weights are PyTorch's: weight_ih_l0 (k H, C), weight_hh_l0 (k H, H),
bias_ih_l0 and bias_hh_l0 (k H,). The names for the other direction end in _reverse. k is 1 for RNN,
4 for LSTM (i, f, g, o), 3 for GRU (r, z, n). The initial values of all weights are uniform in
+-1/sqrt(H). The loop over time is one op. minidl/ops/extra/recurrent.py has this op, and names the
papers.
Test: tests/nn/test_recurrent.py   Tutorial: tutorials/32_recurrent.py
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from minidl.nn import functional as F
from minidl.nn import init
from minidl.nn.layers import empty_parameter
from minidl.nn.module import Module
from minidl.ops.shape import cat, flip, stack
from minidl.tensor import Tensor, wrapped

if TYPE_CHECKING:
    from typing import Any

    from minidl.hints import Array
    from minidl.random import Generator


class _Recurrent(Module):
    """The common part of RNN, LSTM and GRU. input: (L, N, C), or (N, L, C) with batch_first, or
    (L, C) without a batch. dropout: the probability of dropout between two layers."""
    parts = 1  # each weight has parts * hidden_size rows
    states = 1  # the number of states: 1 (only h), or 2 (h and c)

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
                 batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
                 generator: Generator | None = None):
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first = bias, batch_first
        self.dropout, self.bidirectional = float(dropout), bidirectional
        self.suffixes = [f"_l{layer}{way}" for layer in range(num_layers)
                         for way in ("", "_reverse")[:1 + bidirectional]]
        bound = 1 / math.sqrt(hidden_size)
        for i, suffix in enumerate(self.suffixes):
            first = i < 1 + bidirectional
            width = input_size if first else hidden_size * (1 + bidirectional)
            shapes = {"weight_ih": (self.parts * hidden_size, width),
                      "weight_hh": (self.parts * hidden_size, hidden_size)}
            if bias:
                shapes |= {"bias_ih": shapes["weight_ih"][:1], "bias_hh": shapes["weight_ih"][:1]}
            for name, shape in shapes.items():
                setattr(self, name + suffix, empty_parameter(*shape))
                init.uniform_(getattr(self, name + suffix), -bound, bound, generator)

    def forward(self, input: Array,
                hx: Array | tuple[Array, Array] | None = None) -> tuple[Tensor, Any]:
        """Returns (output, last states). output: h of the last layer at every step, (L, N, H), or
        (L, N, 2H) if bidirectional. last states: (layers * directions, N, H). LSTM has a pair of
        such tensors, (h, c). hx: the states before the first step, of the shape of the last states.
        The default is zeros. Raises ValueError for wrong shapes."""
        input = wrapped(input)
        batched = input.ndim == 3
        if input.ndim not in (2, 3) or input.shape[-1] != self.input_size:
            raise ValueError(f"{type(self).__name__}: input must have the shape (L, N, "
                             f"{self.input_size}) or (L, {self.input_size}); got "
                             f"{tuple(input.shape)}")
        x = input if batched else input.unsqueeze(1)
        x = x.transpose(0, 1) if batched and self.batch_first else x
        states = self._first_states(x, hx, batched)
        lasts = []
        n_ways = 1 + self.bidirectional
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            ways = []
            for way in range(n_ways):
                i = layer * n_ways + way
                y, *last = self._run(flip(x, 0) if way else x, [s[i] for s in states],
                                     self.suffixes[i])
                ways.append(flip(y, 0) if way else y)
                lasts.append(last)
            x = cat(ways, 2) if self.bidirectional else ways[0]
        lasts = tuple(stack(each) for each in zip(*lasts, strict=True))
        if not batched:
            x, lasts = x.squeeze(1), tuple(s.squeeze(1) for s in lasts)
        elif self.batch_first:
            x = x.transpose(0, 1)
        return x, (lasts if self.states == 2 else lasts[0])

    def _first_states(self, x, hx, batched):
        shape = (len(self.suffixes), x.shape[1], self.hidden_size)
        if hx is None:
            return [Tensor(x._xp.zeros(shape, x.dtype)) for _ in range(self.states)]
        states = list(hx) if self.states == 2 else [hx]
        states = states if batched else [s.unsqueeze(1) for s in states]
        for s in states:
            if tuple(s.shape) != shape:
                raise ValueError(f"{type(self).__name__}: the first state must have the shape "
                                 f"(layers * directions, N, H) = {shape}; got {tuple(s.shape)}")
        return states

    def _run(self, x, states, suffix):
        """Runs one layer in one direction. Returns (output, last h), or (output, last h, last c)
        for LSTM."""
        w_ih, w_hh = getattr(self, "weight_ih" + suffix), getattr(self, "weight_hh" + suffix)
        if self.bias:
            b_ih, b_hh = getattr(self, "bias_ih" + suffix), getattr(self, "bias_hh" + suffix)
        else:
            b_ih, b_hh = None, Tensor(x._xp.zeros(w_hh.shape[0], w_hh.dtype))
        return self.sequence(F.linear(x, w_ih, b_ih), *states, w_hh, b_hh)

    def extra_repr(self):
        usual = dict(num_layers=1, bias=True, batch_first=False, dropout=0.0, bidirectional=False)
        parts = [f"{name}={getattr(self, name)}" for name, value in usual.items()
                 if getattr(self, name) != value]
        return ", ".join([str(self.input_size), str(self.hidden_size), *parts])


class RNN(_Recurrent):
    """h_t = tanh(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh). nonlinearity="relu" uses relu in place of
    tanh."""

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1,
                 nonlinearity: str = "tanh", bias: bool = True, batch_first: bool = False,
                 dropout: float = 0.0, bidirectional: bool = False,
                 generator: Generator | None = None):
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"RNN: nonlinearity must be 'tanh' or 'relu'; got {nonlinearity!r}")
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout,
                         bidirectional, generator)
        self.nonlinearity = nonlinearity

    def sequence(self, x, h, w, b):
        return F.rnn_sequence(x, h, w, b, self.nonlinearity)


class LSTM(_Recurrent):
    """A recurrent layer with three gates. The gates decide three things: which share of the cell
    state c is kept, which share of the new value is added to c, and which share of tanh(c) becomes
    h. The states are (h, c)."""
    parts, states, sequence = 4, 2, staticmethod(F.lstm_sequence)


class GRU(_Recurrent):
    """A recurrent layer with two gates. They decide which share of the old state the new value
    uses, and which share of the old state is kept."""
    parts, sequence = 3, staticmethod(F.gru_sequence)
