"""Rows of the neural-network ops, in the form of samples.py: which says what a row is."""

import numpy as np

from tests.ops.samples import apart, f, n, p, row

MATMUL = [
    row("matmul", lambda m, F, a, b: m.matmul(a, b), [
        (n(2, 3), n(3, 4)), (n(3), n(3)), (n(3), n(3, 2)), (n(2, 3), n(3)), (n(1, 1), n(1, 1)),
        (n(4, 2, 3), n(3, 2)), (n(2, 3), n(4, 3, 2)), (n(4, 2, 3), n(4, 3, 2)),
        (n(2, 1, 2, 3), n(3, 3, 1)), (n(2, 2, 3), n(1, 3, 2)), (n(4, 2, 3), n(3)),
        (n(3), n(4, 3, 2)), (n(0, 2, 3), n(3, 2)), (n(2, 0), n(0, 3)), (n(0, 3), n(3, 0)),
    ]),
    row("matmul operator", lambda m, F, a, b: a @ b @ a.mT, [(n(2, 3), n(3, 3))]),
    row("linear", lambda m, F, x, w, b: F.linear(x, w, b), [
        (n(2, 3), n(4, 3), n(4)), (n(2, 1, 3), n(1, 3), n(1)), (n(3), n(2, 3), n(2)),
        (n(0, 3), n(4, 3), n(4)),
    ]),
    row("bmm", lambda m, F, a, b: m.bmm(a, b), [
        (n(2, 3, 4), n(2, 4, 5)), (n(1, 1, 1), n(1, 1, 1)), (n(3, 1, 7), n(3, 7, 1)),
        (n(0, 2, 3), n(0, 3, 2)), (n(2, 3, 0), n(2, 0, 2)), (n(2, 0, 3), n(2, 3, 2)),
    ]),
    row("bmm method", lambda m, F, a, b: a.bmm(b.mT), [(n(2, 3, 4), n(2, 5, 4))]),
    row("dot", lambda m, F, a, b: m.dot(a, b) * a.dot(a),
        [(n(5), n(5)), (n(1), n(1)), (n(0), n(0))]),
    row("outer", lambda m, F, a, b: m.outer(a, b) + b.outer(a).T,
        [(n(3), n(5)), (n(1), n(1)), (n(0), n(2)), (n(2), n(0))]),
    row("linear no bias", lambda m, F, x, w: F.linear(x, w), [(n(2, 3), n(4, 3))]),
]

IMAGE, KERNEL = n(2, 4, 5, 6), n(2, 4, 3, 2)
GROUPED = n(4, 2, 3, 2)
SEQUENCE, KERNEL_1D = n(2, 4, 7), n(2, 4, 3)
CONV = [
    row("conv2d", lambda m, F, x, w, b: F.conv2d(x, w, b), [
        (IMAGE, KERNEL, n(2)), (n(1, 1, 1, 1), n(1, 1, 1, 1), n(1)), (n(4, 5, 3), KERNEL, n(2)),
        (n(0, 4, 3, 3), KERNEL, n(2)), (n(1, 2, 3, 5), n(3, 2, 1, 1), n(3)),
    ]),
    row("conv2d no bias", lambda m, F, x, w: m.conv2d(x, w), [(n(1, 2, 3, 3), n(1, 2, 2, 2))]),
    row("conv2d stride", lambda m, F, x, w: F.conv2d(x, w, stride=(2, 3)), [(IMAGE, KERNEL)]),
    row("conv2d padding", lambda m, F, x, w: F.conv2d(x, w, None, 2, (1, 2)), [(IMAGE, KERNEL)]),
    row("conv2d same", lambda m, F, x, w: F.conv2d(x, w, padding="same", dilation=(1, 2)),
        [(IMAGE, KERNEL)]),
    row("conv2d valid", lambda m, F, x, w: F.conv2d(x, w, padding="valid", dilation=2),
        [(IMAGE, KERNEL)]),
    row("conv2d groups", lambda m, F, x, w: F.conv2d(x, w, None, 2, 1, 2, 2), [(IMAGE, GROUPED)]),
    row("conv2d depthwise", lambda m, F, x, w, b: F.conv2d(x, w, b, padding=1, groups=4),
        [(IMAGE, n(8, 1, 3, 3), n(8))]),
    row("conv1d", lambda m, F, x, w, b: F.conv1d(x, w, b),
        [(SEQUENCE, KERNEL_1D, n(2)), (n(4, 3), KERNEL_1D, n(2)), (n(0, 4, 5), KERNEL_1D, n(2))]),
    row("conv1d options", lambda m, F, x, w: F.conv1d(x, w, None, 2, 3, 2, 2),
        [(SEQUENCE, n(6, 2, 3))]),
    row("conv1d same", lambda m, F, x, w: m.conv1d(x, w, padding="same"), [(SEQUENCE, KERNEL_1D)]),
]

TIED = np.array([0, 2, 2, 1, 2, 1, 0, 0, 1, 1, 1, 1, 0, 2, 1, 2] * 2, float).reshape(1, 2, 4, 4)
POOL = [
    row("max_pool2d", lambda m, F, x: F.max_pool2d(x, 2),
        [apart(2, 2, 5, 4), apart(1, 3, 2), n(0, 2, 4, 4)], [TIED]),
    row("max_pool2d options", lambda m, F, x: F.max_pool2d(x, (3, 2), (1, 2), (1, 0), (1, 2)),
        [apart(1, 2, 5, 4)], [TIED]),
    row("max_pool2d overlap", lambda m, F, x: F.max_pool2d(x, 3, 2, 1), [apart(1, 1, 5, 7)],
        [TIED, f(np.nan, 1, 2, 3, 0, 0, -np.inf, 1, 2, np.nan, 2, 2).reshape(1, 1, 3, 4)]),
    row("max_pool2d ceil", lambda m, F, x: F.max_pool2d(x, 2, ceil_mode=True),
        [apart(2, 2, 5, 7), apart(1, 4, 5), apart(1, 1, 1, 1), n(0, 2, 3, 3)], [TIED]),
    row("max_pool2d ceil options",
        lambda m, F, x: F.max_pool2d(x, (3, 2), (2, 3), 1, (1, 2), ceil_mode=True),
        [apart(1, 2, 6, 8), apart(1, 2, 5, 9), apart(1, 1, 2, 6)], [TIED]),
    row("avg_pool2d ceil", lambda m, F, x: F.avg_pool2d(x, (3, 2), (2, 4), 1, ceil_mode=True),
        [n(1, 2, 6, 8), n(2, 5, 9), n(1, 1, 1, 1), n(0, 1, 4, 4)]),
    row("avg_pool2d ceil real elements",
        lambda m, F, x: F.avg_pool2d(x, 3, 2, 1, True, count_include_pad=False),
        [n(1, 2, 6, 8), n(1, 2, 5, 4)]),
    row("avg_pool2d ceil divisor",
        lambda m, F, x: F.avg_pool2d(x, 2, 3, ceil_mode=True, divisor_override=3), [n(1, 2, 7, 4)]),
    row("avg_pool2d", lambda m, F, x: F.avg_pool2d(x, 2),
        [n(2, 2, 5, 4), n(1, 2, 2), n(0, 2, 4, 4)]),
    row("avg_pool2d options", lambda m, F, x: F.avg_pool2d(x, (3, 2), (1, 2), (1, 0)),
        [n(1, 2, 5, 4)]),
    row("avg_pool2d real elements",
        lambda m, F, x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), [n(1, 2, 5, 4)]),
    row("avg_pool2d divisor", lambda m, F, x: F.avg_pool2d(x, 2, divisor_override=3),
        [n(1, 2, 3, 4)]),
    row("adaptive_avg_pool2d", lambda m, F, x: F.adaptive_avg_pool2d(x, (3, 2)),
        [n(2, 2, 5, 4), n(2, 3, 2), n(1, 1, 2, 7)]),
    row("adaptive_avg_pool2d one", lambda m, F, x: F.adaptive_avg_pool2d(x, 1), [n(2, 1, 5, 4)]),
    row("adaptive_avg_pool2d none", lambda m, F, x: F.adaptive_avg_pool2d(x, (None, 7)),
        [n(1, 2, 5, 3)]),
]

SOFTMAX = [
    row("softmax", lambda m, F, x: F.softmax(x, -1),
        [n(2, 3), n(5, 1), n(3, 0), n(0, 3), n(), 300 * n(2, 3)]),
    row("softmax dim", lambda m, F, x: x.softmax(1) * m.softmax(x, dim=-3), [n(2, 3, 4)]),
    row("log_softmax", lambda m, F, x: F.log_softmax(x, 1), [n(2, 3), n(0, 3), 300 * n(2, 3)]),
    row("log_softmax 0-d", lambda m, F, x: F.log_softmax(x, 0) + F.softmax(x, 0), [n()]),
    row("log_softmax dim", lambda m, F, x: x.log_softmax(-2), [n(2, 3, 4)]),
]

SOME = np.array([2, -100, 0, 1, 2])
GRID = np.array([[[0, 1], [2, 2], [-100, 0]], [[1, 1], [0, 2], [2, 0]]])
LOGITS = [(n(5, 3), SOME), (n(2, 3, 3, 2), GRID), (n(2, 3, 2), GRID[:, 1]), (n(3), np.array(1))]


def class_weight(m, x):
    return m.tensor([0.5, 2.0, 1.25], dtype=x.dtype, device=x.device)


LOSS = [
    row("cross_entropy", lambda m, F, x, t: F.cross_entropy(x, t), [*LOGITS, (300 * n(5, 3), SOME)],
        [(n(0, 3), SOME[:0]), (n(2, 3), SOME[[1, 1]])]),
    row("cross_entropy none", lambda m, F, x, t: F.cross_entropy(x, t, reduction="none"),
        [*LOGITS, (n(0, 3), SOME[:0])]),
    row("cross_entropy sum",
        lambda m, F, x, t: F.cross_entropy(x, t, ignore_index=2, reduction="sum"),
        [(n(5, 3), np.abs(SOME) % 3), (n(2, 3), np.array([2, 2]))]),
    row("cross_entropy smooth", lambda m, F, x, t: F.cross_entropy(x, t, label_smoothing=0.3),
        LOGITS),
    row("cross_entropy smooth none",
        lambda m, F, x, t: F.cross_entropy(x, t, label_smoothing=1.0, reduction="none"), LOGITS),
    row("cross_entropy weight", lambda m, F, x, t: F.cross_entropy(x, t, class_weight(m, x)),
        LOGITS),
    row("cross_entropy weight smooth", lambda m, F, x, t: F.cross_entropy(
        x, t, class_weight(m, x), label_smoothing=0.3), LOGITS),
    row("cross_entropy weight smooth none", lambda m, F, x, t: F.cross_entropy(
        x, t, class_weight(m, x), label_smoothing=0.3, reduction="none"), LOGITS),
    row("cross_entropy probabilities", lambda m, F, x, t: F.cross_entropy(x, t),
        [(n(4, 3), p(4, 3)), (n(2, 3, 2), p(2, 3, 2)), (n(3), p(3))]),
    row("cross_entropy probabilities smooth", lambda m, F, x, t: F.cross_entropy(
        x, t, class_weight(m, x), label_smoothing=0.3), [(n(4, 3), p(4, 3)),
                                                         (n(2, 3, 2), p(2, 3, 2))]),
    row("cross_entropy probabilities none", lambda m, F, x, t: F.cross_entropy(
        x, t, reduction="none"), [(n(4, 3), p(4, 3)), (n(2, 3, 2), p(2, 3, 2))]),
    row("nll_loss", lambda m, F, x, t: F.nll_loss(x, t), LOGITS, [(n(2, 3), SOME[[1, 1]])]),
    row("nll_loss weight sum", lambda m, F, x, t: F.nll_loss(
        x, t, class_weight(m, x), reduction="sum"), LOGITS),
    row("nll_loss weight mean", lambda m, F, x, t: F.nll_loss(x, t, class_weight(m, x)), LOGITS),
    row("nll_loss none", lambda m, F, x, t: F.nll_loss(x, t, reduction="none"), LOGITS),
    row("mse_loss", lambda m, F, a, b: F.mse_loss(a, b), [(n(2, 3), n(2, 3)), (n(), n())],
        [(n(0), n(0))]),
    row("mse_loss sum", lambda m, F, a, b: F.mse_loss(a, b, reduction="sum"), [(n(3), n(3))]),
    row("mse_loss none", lambda m, F, a, b: F.mse_loss(a, b, reduction="none"), [(n(3), n(3))]),
    row("l1_loss", lambda m, F, a, b: F.l1_loss(a, b), [(n(2, 3), n(2, 3)), (n(), n())],
        [(n(0), n(0)), (f(1, 2), f(1, 3))]),
    row("l1_loss sum", lambda m, F, a, b: F.l1_loss(a, b, reduction="sum"), [(n(3), n(3))]),
    row("l1_loss none", lambda m, F, a, b: F.l1_loss(a, b, reduction="none"), [(n(3), n(3))]),
    row("binary_cross_entropy", lambda m, F, x, t: F.binary_cross_entropy(x.sigmoid(), t.sigmoid()),
        [(n(2, 3), n(2, 3)), (n(), n())], [(n(0), n(0))]),
    row("binary_cross_entropy weights",
        lambda m, F, x, t: F.binary_cross_entropy(x.sigmoid(), t.sigmoid(), class_weight(m, x),
                                                  reduction="sum"),
        [(n(2, 3), n(2, 3))]),
    row("binary_cross_entropy_with_logits",
        lambda m, F, x, t: F.binary_cross_entropy_with_logits(x, t),
        [(n(2, 3), p(2, 3)), (n(), p()), (f(-300, 300, 0), f(0, 0, 1))], [(n(0), n(0))]),
    row("binary_cross_entropy_with_logits weights",
        lambda m, F, x, t: F.binary_cross_entropy_with_logits(
            x, t, class_weight(m, x), reduction="sum", pos_weight=1 + class_weight(m, x)),
        [(n(2, 3), p(2, 3))]),
    row("binary_cross_entropy_with_logits none",
        lambda m, F, x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none"),
        [(n(2, 3), p(2, 3))]),
]


def running(m, x):
    """A mean and a variance for four channels."""
    return (m.tensor([0.5, -1.0, 0.0, 2.0], dtype=x.dtype, device=x.device),
            m.tensor([1.5, 0.25, 1.0, 2.0], dtype=x.dtype, device=x.device))


NORM = [
    row("layer_norm", lambda m, F, x, w, b: F.layer_norm(x, (3,), w, b),
        [(n(2, 3), n(3), n(3)), (n(2, 2, 3), n(3), n(3)), (n(3), n(3), n(3)),
         (n(0, 3), n(3), n(3)), (1 + n(2, 3), n(3), n(3))]),
    row("layer_norm dims", lambda m, F, x, w: F.layer_norm(x, [2, 3], w, eps=0.1),
        [(n(2, 2, 3), n(2, 3))]),
    row("layer_norm plain", lambda m, F, x: F.layer_norm(x, (5,)), [n(2, 5)], [n(3, 5) * 0]),
    row("layer_norm bias", lambda m, F, x, b: F.layer_norm(x, (5,), None, b), [(n(2, 5), n(5))]),
    row("rms_norm", lambda m, F, x, w: F.rms_norm(x, (3,), w, 1e-5),
        [(n(2, 3), n(3)), (n(2, 2, 3), n(3)), (n(0, 3), n(3))]),
    row("rms_norm plain", lambda m, F, x: F.rms_norm(x, (2, 3)), [n(2, 2, 3)]),
    row("group_norm", lambda m, F, x, w, b: F.group_norm(x, 2, w, b),
        [(n(2, 4), n(4), n(4)), (n(2, 4, 3), n(4), n(4)), (n(1, 4, 2, 3), n(4), n(4)),
         (n(0, 4, 2), n(4), n(4))]),
    row("group_norm plain", lambda m, F, x: F.group_norm(x, 4, eps=0.1), [n(2, 4, 3)]),
    row("batch_norm", lambda m, F, x, w, b: F.batch_norm(x, None, None, w, b, True),
        [(n(3, 4), n(4), n(4)), (n(2, 4, 3), n(4), n(4)), (n(2, 4, 2, 2), n(4), n(4))]),
    row("batch_norm plain", lambda m, F, x: F.batch_norm(x, *running(m, x), training=True),
        [n(3, 4), n(2, 4, 2, 2)]),
    row("batch_norm eval", lambda m, F, x, w, b: F.batch_norm(x, *running(m, x), w, b, eps=0.1),
        [(n(3, 4), n(4), n(4)), (n(1, 4), n(4), n(4)), (n(2, 4, 2, 2), n(4), n(4)),
         (n(0, 4, 2), n(4), n(4))]),
    row("batch_norm eval plain", lambda m, F, x: F.batch_norm(x, *running(m, x)), [n(3, 4)]),
]

IDS = np.array([[0, 2, 2], [4, 2, 0]])
OTHERS = [
    # zeroing none, all, or outside training; the random part: tests/ops/test_dropout.py
    row("dropout", lambda m, F, x: F.dropout(x, 0.0) * F.dropout(x, 0.5, False)
        + F.dropout(x, 1.0), [n(2, 3), n(), n(0, 3)]),
    row("embedding", lambda m, F, i, w: F.embedding(i, w),
        [(IDS, n(5, 3)), (np.array(0), n(1, 1)), (IDS[:0], n(5, 3)), (IDS.astype("i4"), n(5, 1))]),
    # a kink: the padding row is read but gets no gradient
    row("embedding padding", lambda m, F, i, w: F.embedding(i, w, padding_idx=-3),
        [(IDS[:, :1], n(5, 3))], [(IDS, n(5, 3))]),
]


def qkv(*lead, L=3, S=5, E=2, Ev=4):
    return n(*lead, L, E), n(*lead, S, E), n(*lead, S, Ev)


def self_attention(F, qkv, is_causal=False):
    """Of 2 heads. PyTorch's functional module has none: there from the thirds."""
    if hasattr(F, "self_attention"):
        return F.self_attention(qkv, 2, is_causal)
    B, L, C = *qkv.shape[:2], qkv.shape[2] // 3
    q, k, v = qkv.reshape(B, L, 3, 2, C // 2).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    return y.transpose(1, 2).reshape(B, L, C)


SEEN = np.array([[0, 1, 0, 1, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], bool)  # the second sees none
ATTENTION = [
    row("scaled_dot_product_attention",
        lambda m, F, q, k, v: F.scaled_dot_product_attention(q, k, v),
        [qkv(), qkv(2), qkv(2, 1), qkv(1, 2, 1), qkv(2, 1, L=1, S=1), qkv(0, 2),
         (n(2, 1, 2, 3), n(3, 2, 3), n(2, 1))]),
    row("scaled_dot_product_attention causal",
        lambda m, F, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
        [qkv(1, 2), qkv(1, 2, L=5, S=3), qkv(2, L=1)]),
    row("scaled_dot_product_attention bool",
        lambda m, F, q, k, v, s: F.scaled_dot_product_attention(q, k, v, s),
        [(*qkv(1, 2), SEEN), (*qkv(2, 1), SEEN[:1]), (*qkv(2), np.stack([SEEN, ~SEEN]))]),
    row("scaled_dot_product_attention bias",
        lambda m, F, q, k, v, b: F.scaled_dot_product_attention(q, k, v, b),
        [(*qkv(1, 2), n(3, 5)), (*qkv(2, 2), n(2, 1, 3, 5))],
        [(*qkv(1, 2), np.where(SEEN, 0.5, -np.inf))]),
    row("self_attention", lambda m, F, x: self_attention(F, x),
        [n(2, 3, 12), n(1, 1, 6), n(0, 3, 12)]),
    row("self_attention causal", lambda m, F, x: self_attention(F, x, True), [n(2, 5, 12)]),
]

ROWS = MATMUL + CONV + POOL + SOFTMAX + LOSS + NORM + OTHERS + ATTENTION
