"""Recurrent layers: forward and backward do a small step for each element of a sequence.

    h_t = step(x_t, h_{t-1})         t = 0, 1, ... T-1           x_t = W_ih input_t + b_ih

    forward    h_0 ─► step ─► step ─► step ─► h_T                each step: a product with W_hh
    backward   gh ◄── step ◄── step ◄── step ◄── gh_T            each step: a product with W_hh^T

One product before the loop computes x_t for all steps. One product after the loop computes the
gradient of W_hh. So one Function computes a whole sequence. Its backward is backpropagation through
time.
Sources: Elman 1990 (RNN); Hochreiter & Schmidhuber 1997, Gers et al. 2000 (LSTM); Cho et al. 2014
(GRU, here with the reset after the product, as in PyTorch).
Test: tests/nn/test_recurrent.py   Tutorial: tutorials/32_recurrent.py
"""

from minidl.function import Function
from minidl.ops.activations import logistic
from minidl.ops.matmul import product
from minidl.tensor import Tensor


class Recurrence(Function):
    """The base class of Rnn, Lstm and Gru. It makes the arrays for all steps, and computes the
    gradients of the weights."""

    def start(self, x, h, parts):
        """Returns new arrays (T, N, H): one for the previous states, one for the results, and
        `parts` more for backward."""
        shape = (*x.shape[:2], h.shape[-1])
        return [self.xp.empty(shape, x.dtype) for _ in range(2 + parts)]

    def weight_gradients(self, g, before):
        """Returns (gw, gb) for a = h W^T + b, summed over all steps. g: the gradient of a, (T, N, k
        H), where k is 1 for Rnn, 4 for Lstm and 3 for Gru. before: the h before each step, (T, N,
        H)."""
        g, before = (a.reshape(-1, a.shape[-1]) for a in (g, before))
        return product(self.xp, g.T, before), g.sum(axis=0)


class Rnn(Recurrence):
    """h_t = tanh(x_t + W h_{t-1} + b), or relu in place of tanh.  x (T, N, H), h (N, H), w (H, H),
    b (H,)."""

    def forward(self, x, h, w, b, nonlinearity):
        self.nonlinearity = nonlinearity
        before, ys = self.start(x, h, 0)
        for t in range(len(x)):
            before[t] = h
            a = x[t] + product(self.xp, h, w.T) + b
            h = ys[t] = self.xp.tanh(a) if nonlinearity == "tanh" else self.xp.maximum(a, 0)
        self.save(before, ys, w)
        return ys, h.copy()

    def backward(self, gys, gh):
        before, ys, w = self.saved
        ga = self.xp.empty_like(ys)
        for t in reversed(range(len(ys))):
            gh = gh + gys[t]
            slope = 1 - ys[t] * ys[t] if self.nonlinearity == "tanh" else ys[t] > 0
            ga[t] = gh * slope
            gh = product(self.xp, ga[t], w)
        return ga, gh, *self.weight_gradients(ga, before)


class Lstm(Recurrence):
    """i, f, g, o are the quarters of a = x_t + W h_{t-1} + b, after sigmoid (i, f, o) or tanh (g).
    c_t = f c_{t-1} + i g,   h_t = o tanh(c_t).
    x (T, N, 4H), h and c (N, H), w (4H, H), b (4H,)."""

    def forward(self, x, h, c, w, b):
        xp, H = self.xp, h.shape[-1]
        before, ys, cs = self.start(x, h, 1)
        gates = xp.empty(x.shape, x.dtype)
        first = c
        for t in range(len(x)):
            before[t] = h
            a = x[t] + product(xp, h, w.T) + b
            i_f, g, o = a[:, :2 * H], a[:, 2 * H:3 * H], a[:, 3 * H:]
            a[:, :2 * H], a[:, 2 * H:3 * H] = logistic(xp, i_f), xp.tanh(g)
            a[:, 3 * H:] = logistic(xp, o)
            i, f, g, o = (a[:, k * H:(k + 1) * H] for k in range(4))
            c = cs[t] = f * c + i * g
            h = ys[t] = o * xp.tanh(c)
            gates[t] = a
        self.save(before, gates, cs, first, w)
        return ys, h.copy(), c.copy()

    def backward(self, gys, gh, gc):
        before, gates, cs, first, w = self.saved
        xp, H = self.xp, first.shape[-1]
        ga = xp.empty_like(gates)
        for t in reversed(range(len(gates))):
            i, f, g, o = (gates[t][:, k * H:(k + 1) * H] for k in range(4))
            c_before = cs[t - 1] if t else first
            gh = gh + gys[t]
            tanh_c = xp.tanh(cs[t])
            gc = gc + gh * o * (1 - tanh_c * tanh_c)
            ga[t] = xp.concatenate([gc * g * i * (1 - i), gc * c_before * f * (1 - f),
                                    gc * i * (1 - g * g), gh * tanh_c * o * (1 - o)], axis=1)
            gc = gc * f
            gh = product(xp, ga[t], w)
        return ga, gh, gc, *self.weight_gradients(ga, before)


class Gru(Recurrence):
    """x_t and a = W h_{t-1} + b have three parts each, for r, z and n. r = sigmoid(x_r + a_r),
    z = sigmoid(x_z + a_z), n = tanh(x_n + r a_n), h_t = (1 - z) n + z h_{t-1}.
    x (T, N, 3H), h (N, H), w (3H, H), b (3H,)."""

    def forward(self, x, h, w, b):
        xp, H = self.xp, h.shape[-1]
        before, ys, a_ns, ns = self.start(x, h, 2)
        gates = xp.empty((*x.shape[:2], 2 * H), x.dtype)
        for t in range(len(x)):
            before[t] = h
            a = product(xp, h, w.T) + b
            gates[t] = logistic(xp, x[t][:, :2 * H] + a[:, :2 * H])
            r, z = gates[t][:, :H], gates[t][:, H:]
            a_ns[t] = a[:, 2 * H:]
            n = ns[t] = xp.tanh(x[t][:, 2 * H:] + r * a_ns[t])
            h = ys[t] = (1 - z) * n + z * h
        self.save(before, gates, a_ns, ns, w)
        return ys, h.copy()

    def backward(self, gys, gh):
        before, gates, a_ns, ns, w = self.saved
        xp, H = self.xp, before.shape[-1]
        gx = xp.empty((*gates.shape[:2], 3 * H), gates.dtype)
        ga = xp.empty_like(gx)
        for t in reversed(range(len(gates))):
            r, z = gates[t][:, :H], gates[t][:, H:]
            gh = gh + gys[t]
            gn = gh * (1 - z) * (1 - ns[t] * ns[t])
            gx[t][:, :H] = gn * a_ns[t] * r * (1 - r)
            gx[t][:, H:2 * H] = gh * (before[t] - ns[t]) * z * (1 - z)
            gx[t][:, 2 * H:] = gn
            ga[t] = gx[t]
            ga[t][:, 2 * H:] *= r  # r multiplies a_n, not x_n
            gh = gh * z + product(xp, ga[t], w)
        return gx, gh, *self.weight_gradients(ga, before)


def rnn_sequence(x, h, w, b, nonlinearity="tanh") -> tuple[Tensor, Tensor]:
    """Runs an Rnn over a sequence. Returns (h of all steps (T, N, H), the last h (N, H)). The
    arguments are described in Rnn."""
    return Rnn.apply(x, h, w, b, nonlinearity=nonlinearity)


def lstm_sequence(x, h, c, w, b) -> tuple[Tensor, Tensor, Tensor]:
    """Runs an Lstm over a sequence. Returns (h of all steps (T, N, H), the last h, the last c). The
    arguments are described in Lstm."""
    return Lstm.apply(x, h, c, w, b)


def gru_sequence(x, h, w, b) -> tuple[Tensor, Tensor]:
    """Runs a Gru over a sequence. Returns (h of all steps (T, N, H), the last h). The arguments are
    described in Gru."""
    return Gru.apply(x, h, w, b)
