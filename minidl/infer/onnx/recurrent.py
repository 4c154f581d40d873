"""ONNX's recurrent layers. Their gates and axes have another order than in minidl.

    LSTM   gates i o f c, in minidl i f g o      GRU   gates z r h, in minidl r z n
    x (T, N, n_in)     w (directions, gates H, n_in)     y (T, directions, N, H)

Test: tests/infer/onnx/test_every_operator.py, test_operators.py
"""

from minidl.infer.onnx.operator import Known, Refused, m, operators
from minidl.nn import functional as F


def _recurrent(x, w, r, b, lengths, h, direction, layout, hidden_size, order, run):
    """Runs a recurrent layer, once for each direction. Returns (y, *last states), in ONNX's order
    of axes.

    x, w, r, b, lengths: the layer's inputs in ONNX. h: a list of the initial states.
    run: a function of minidl, called as run(x W^T, states, r, b).
    order: minidl's gate j is ONNX's gate order[j].
    layout: 1 if the batch is the first axis."""
    if lengths is not None and (lengths != x.shape[0]).any():
        raise Refused("sequences of different lengths are not supported")
    if layout:
        x, h = x.permute(1, 0, 2), [s.permute(1, 0, 2) for s in h]
    n, ys, ends = hidden_size, [], []

    def gates(v, dim=0):
        return m.cat([v[i * n:(i + 1) * n] for i in order], dim)

    for d in range(w.shape[0]):
        backwards = direction == "reverse" or d == 1
        xd = m.flip(x, 0) if backwards else x
        wb, rb = (gates(b[d, :len(order) * n]), gates(b[d, len(order) * n:])) if b is not None \
            else (None, m.zeros(len(order) * n))
        y, *states = run(F.linear(xd, gates(w[d]), wb), [s[d] for s in h], gates(r[d]), rb)
        ys.append(m.flip(y, 0) if backwards else y)
        ends.append(states)
    y, ends = m.stack(ys, 1), [m.stack(s, 0) for s in zip(*ends)]
    if layout:
        return y.permute(2, 0, 1, 3), *(s.permute(1, 0, 2) for s in ends)
    return y, *ends


def _start(h, x, w, hidden_size, layout):
    """Returns the initial state h, or zeros if h is None."""
    if h is not None:
        return h
    n = x.shape[0 if layout else 1]
    return m.zeros(*((n, w.shape[0]) if layout else (w.shape[0], n)), hidden_size)


def _plain(given, wanted, clip, forget=0):
    """Raises Refused if a layer has other activations than `wanted`, or if clip or input_forget is
    set. given: the layer's activations, or None for the default."""
    if clip or forget or given and [g.lower() for g in given] != wanted * (
            len(given) // len(wanted)):
        raise Refused(f"want the activations {wanted}, clip=0 and input_forget=0; got the "
                      f"activations {given}, clip={clip} and input_forget={forget}")


def RNN(x, w, r, b=None, lengths: Known = None, h=None, *, hidden_size, activations=None, clip=0.0,
        direction="forward", layout=0):
    kind = (activations or ["Tanh"])[0].lower()
    _plain(activations, ["tanh"] if kind == "tanh" else ["relu"], clip)
    h = [_start(h, x, w, hidden_size, layout)]
    return _recurrent(x, w, r, b, lengths, h, direction, layout, hidden_size, [0],
                      lambda x, h, r, b: F.rnn_sequence(x, *h, r, b, kind))


def GRU(x, w, r, b=None, lengths: Known = None, h=None, *, hidden_size, activations=None, clip=0.0,
        direction="forward", layout=0, linear_before_reset=0):
    _plain(activations, ["sigmoid", "tanh"], clip)
    run = F.gru_sequence if linear_before_reset else _reset_before
    h = [_start(h, x, w, hidden_size, layout)]
    return _recurrent(x, w, r, b, lengths, h, direction, layout, hidden_size, [1, 0, 2],
                      lambda x, h, r, b: run(x, *h, r, b))


def _reset_before(x, h, w, b):
    """Runs a GRU that first multiplies the state by the reset gate, and then by the weights. (In
    minidl's own GRU the weights come first.) x: (T, N, 3 H). Returns (y (T, N, H), the last
    state)."""
    n, ys = h.shape[-1], []
    if x.shape[0] > 1000:  # the graph gets several lines for each step
        raise Refused(f"got {x.shape[0]} steps with linear_before_reset=0; want at most 1,000 "
                      "steps")
    for t in range(x.shape[0]):
        a = m.sigmoid(x[t][:, :2 * n] + F.linear(h, w[:2 * n], b[:2 * n]))
        new = m.tanh(x[t][:, 2 * n:] + F.linear(a[:, :n] * h, w[2 * n:], b[2 * n:]))
        h = new + a[:, n:] * (h - new)
        ys.append(h)
    return m.stack(ys, 0), h


def LSTM(x, w, r, b=None, lengths: Known = None, h=None, c=None, p=None, *, hidden_size,
         activations=None, clip=0.0, direction="forward", input_forget=0, layout=0):
    if p is not None:
        raise Refused("peephole weights (input P) are not supported")
    _plain(activations, ["sigmoid", "tanh", "tanh"], clip, input_forget)
    states = [_start(s, x, w, hidden_size, layout) for s in (h, c)]
    return _recurrent(x, w, r, b, lengths, states, direction, layout, hidden_size, [0, 2, 3, 1],
                      lambda x, s, r, b: F.lstm_sequence(x, *s, r, b))


TABLE = operators(globals())
