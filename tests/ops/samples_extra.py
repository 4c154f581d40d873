"""Rows of the further ops, minidl/ops/extra/, in the form of samples.py."""

import numpy as np

from tests.ops.samples import INDEX, JUMPS, MASK, ONE, TIES, TWO, apart, f, n, p, row

UNIT = np.linspace(-0.9, 0.9, 7)
ORDER = [
    row("sort", lambda m, F, a: m.sort(a), [apart(3, 4), apart(5), n(), n(0, 3)], [TIES]),
    row("sort down", lambda m, F, a: a.sort(0, descending=True).values * 2,
        [apart(3, 4), n(3, 0)], [TIES, f(1, np.nan, 0, np.inf)]),
    row("topk", lambda m, F, a: m.topk(a, 2), [apart(3, 4), apart(2)], [f(1, np.nan, 0, 2)]),
    row("topk smallest", lambda m, F, a: a.topk(1, 0, largest=False)[0], [apart(3, 4)]),
    row("topk none", lambda m, F, a: a.topk(0)[0], [n(2, 3), n(2, 0)]),
    row("kthvalue", lambda m, F, a: m.kthvalue(a, 2, keepdim=True), [apart(3, 4), apart(2, 3, 2)]),
    row("kthvalue 0-d", lambda m, F, a: a.kthvalue(1), [n()]),
    row("median", lambda m, F, a: m.median(a) * 3, [apart(3, 3), apart(4), n()],
        [f(1, np.nan, 2), f(2, 2, 2, 1)]),
    row("median dim", lambda m, F, a: a.median(1, keepdim=True), [apart(3, 4), n(0, 3)],
        [f(1, 2, 3, np.nan, 0, 1).reshape(2, 3)]),
]

PLACES = np.array([[2, 0, 1], [1, 1, 2]])
SCATTERS = [
    row("scatter", lambda m, F, a, i, b: m.scatter(a, 1, i, b),
        [(n(2, 3), np.array([[2, 0], [1, 2]]), n(2, 2)), (n(2, 0), INDEX[:, :0], n(2, 0))]),
    row("scatter number", lambda m, F, a, i: a.scatter(0, i, 2.5) * 2,
        [(n(3, 2), INDEX), (n(0, 2), INDEX[:0])]),
    row("scatter_add", lambda m, F, a, i, b: m.scatter_add(a, 1, i, b),
        [(n(2, 3), PLACES, n(2, 3)), (n(4, 3), PLACES, n(2, 3)), (n(2, 0), INDEX[:, :0], n(2, 0))]),
    row("index_add", lambda m, F, a, i, b: m.index_add(a, 1, i, b, alpha=2),
        [(n(2, 3), INDEX[0], n(2, 2)), (n(2, 3, 2), INDEX[1], n(2, 2, 2)),
         (n(2, 3), INDEX[0, :0], n(2, 0))]),
    row("index_copy", lambda m, F, a, i, b: a.index_copy(0, i, b),
        [(n(3, 2), INDEX[0], n(2, 2)), (n(3, 0), INDEX[0], n(2, 0))]),
    row("index_fill", lambda m, F, a, i, v: m.index_fill(a, 0, i, v) + a.index_fill(1, i, 0.5),
        [(n(3, 3), INDEX[1], n()), (n(3, 3), INDEX[0, :0], n())]),
    row("masked_select", lambda m, F, a, c: m.masked_select(a, c) + a.masked_select(c),
        [(n(2, 3), MASK), (n(4, 1, 3), MASK), (n(3), MASK), (n(2, 3), MASK & False)]),
]

ARRANGED = [
    row("roll", lambda m, F, a: m.roll(a, 2) + a.roll((1, -1), (0, 1)) * 3, [n(2, 3), n(0, 3)]),
    row("roll dim", lambda m, F, a: a.roll(-1, -1), [n(2, 3), n(4)]),
    row("diagonal", lambda m, F, a: m.diagonal(a) * 2, [n(3, 3), n(2, 4), n(0, 3)]),
    row("diagonal dims", lambda m, F, a: a.diagonal(-1, 0, -1), [n(3, 2, 4), n(4, 2, 2)]),
    row("repeat_interleave", lambda m, F, a: m.repeat_interleave(a, 2) * 2, [n(2, 3), n(), n(0)]),
    row("repeat_interleave dim", lambda m, F, a, r: a.repeat_interleave(r, 0),
        [(n(2, 3), np.array([0, 2])), (n(2, 3), np.array([3])), (n(2, 0), np.array([1, 1]))]),
    row("meshgrid", lambda m, F, a, b: m.meshgrid(a, b, indexing="ij"),
        [(n(2), n(3)), (n(), n(2))]),
    row("meshgrid xy", lambda m, F, a, b, c: m.meshgrid([a, b, c], indexing="xy"),
        [(n(2), n(3), n(1)), (n(0), n(3), n(1))]),
    row("pad reflect", lambda m, F, a: F.pad(a, (2, 1, 1, 0), mode="reflect"),
        [n(1, 2, 3), n(2, 1, 2, 4)]),
    row("pad replicate", lambda m, F, a: F.pad(a, (3, -1), mode="replicate"),
        [n(2, 3), n(1, 2, 4)]),
    row("pad circular", lambda m, F, a: F.pad(a, (2, 3, 1, 0), mode="circular"), [n(1, 2, 3)]),
]

EINSUM = [
    row("einsum", lambda m, F, a, b: m.einsum("ij,jk->ik", a, b), [(n(2, 3), n(3, 4)),
                                                                   (n(0, 3), n(3, 2))]),
    row("einsum heads", lambda m, F, q, k: m.einsum("bhqd,bhkd->bhqk", q, k),
        [(n(2, 2, 3, 4), n(2, 2, 5, 4))]),
    row("einsum one", lambda m, F, a: m.einsum("iji->j", a) + m.einsum("i...i->...", a),
        [n(3, 2, 3)]),
    row("einsum three", lambda m, F, a, b, c: m.einsum("ia, jb, ab -> ij", a, b, c),
        [(n(2, 3), n(4, 2), n(3, 2))]),
    row("einsum dots", lambda m, F, a, b: m.einsum("...ij,...j", a, b), [(n(2, 1, 3, 4), n(5, 4))]),
    row("einsum outer", lambda m, F, a, b: m.einsum("i,j", a, b), [(n(2), n(3)), (n(0), n(3))]),
]

UNARY = [
    row(name, lambda m, F, a, name=name: getattr(m, name)(a) + getattr(a, name)(), inputs, kinks)
    for name, inputs, kinks in [
        ("erf", [*ONE, 2 * n(3, 4)], JUMPS), ("expm1", ONE, JUMPS[:1]), ("exp2", ONE, JUMPS[:1]),
        ("log1p", [p(2, 3), p(), p(0)], []), ("log2", [p(2, 3), p(), p(0)], []),
        ("log10", [p(2, 3), p(), p(0)], []), ("tan", [UNIT, n(0)], []), ("asin", [UNIT, n(0)], []),
        ("acos", [UNIT, n(0)], []), ("atan", ONE, JUMPS), ("sinh", ONE, JUMPS[:1]),
        ("cosh", ONE, JUMPS[:1]), ("reciprocal", [p(2, 3), p(), p(0)], []), ("square", ONE, JUMPS),
    ]]
ROUNDING = [
    row("round decimals", lambda m, F, a: m.round(a, decimals=1) + m.round(a, decimals=-1), ONE,
        [100 * n(3)]),
    row("div floor", lambda m, F, a, b: m.div(a, b, rounding_mode="floor") + a, [(n(2, 3), p(3))]),
    row("div trunc", lambda m, F, a, b: a.div(b, rounding_mode="trunc") + a, [(n(2, 3), p(3))]),
]

ZEROS = f(0, 0, 0, 0, 3, 4).reshape(2, 3)
NORMS = [
    row("norm", lambda m, F, a: m.norm(a) * 2, [n(2, 3), n(), n(4)], [ZEROS * 0]),
    row("norm dim", lambda m, F, a: a.norm(2, -1, keepdim=True), [n(2, 3), n(0, 3)], [ZEROS]),
    row("norm 1", lambda m, F, a: a.norm(1, 0) + a.norm(3.5, 0), [n(2, 3)], [ZEROS]),
    row("norm inf", lambda m, F, a: a.norm(float("inf"), 1) + a.norm(float("-inf"), 1),
        [apart(2, 3) + 0.04], [TIES]),
    row("norm 0", lambda m, F, a: a.norm(0, 1), [n(2, 3)], [ZEROS]),
    row("normalize", lambda m, F, a: F.normalize(a) + F.normalize(a, p=1, dim=0),
        [n(2, 3), n(0, 3)], [ZEROS]),
    row("cosine_similarity", lambda m, F, a, b: F.cosine_similarity(a, b),
        [(n(2, 3), n(2, 3)), (n(2, 3, 2), n(1, 3, 1)), (n(0, 3), n(0, 3))]),
    row("pairwise_distance", lambda m, F, a, b: F.pairwise_distance(a, b, 1.5, keepdim=True),
        [(n(2, 3), n(2, 3))]),
]

ACTIVATIONS = [
    row("mish", lambda m, F, a: F.mish(a), ONE, JUMPS), row("selu", lambda m, F, a: F.selu(a), ONE),
    row("glu", lambda m, F, a: F.glu(a) + F.glu(a, 0)[:1, :2], [n(2, 4)], []),
    row("glu empty", lambda m, F, a: F.glu(a, 1), [n(0, 4)]),
    row("prelu", lambda m, F, a, w: F.prelu(a, w),
        [(n(2, 3), n(3)), (n(2, 3, 4), n(3)), (n(2, 3), n(1)), (n(4), n(1)), (n(), n(1)),
         (n(0, 3), n(3))]),
]

X1, X2, X3 = n(2, 3, 5), n(1, 2, 4, 5), n(1, 1, 2, 3, 2)
IMAGES = [
    row("interpolate", lambda m, F, x: F.interpolate(x, scale_factor=2), [X1, X2, X3, n(0, 2, 3)]),
    row("interpolate size", lambda m, F, x: F.interpolate(x, (3, 7)), [X2]),
    row("interpolate exact", lambda m, F, x: F.interpolate(x, 4, mode="nearest-exact"), [X1]),
    row("interpolate linear", lambda m, F, x: F.interpolate(x, 8, mode="linear"), [X1]),
    row("interpolate bilinear", lambda m, F, x: F.interpolate(x, (3, 9), mode="bilinear"), [X2]),
    row("interpolate corners", lambda m, F, x: F.interpolate(
        x, scale_factor=(1.5, 0.7), mode="bilinear", align_corners=True), [X2]),
    row("interpolate bicubic", lambda m, F, x: F.interpolate(x, (6, 3), mode="bicubic"), [X2]),
    row("interpolate trilinear", lambda m, F, x: F.interpolate(x, 3, mode="trilinear"), [X3]),
    row("interpolate area", lambda m, F, x: F.interpolate(x, (3, 2), mode="area"), [X2]),
    row("conv_transpose2d", lambda m, F, x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1),
        [(n(2, 4, 3, 2), n(4, 3, 3, 2), n(3)), (n(0, 4, 3, 2), n(4, 3, 3, 2), n(3)),
         (n(4, 3, 2), n(4, 3, 3, 2), n(3))]),
    row("conv_transpose2d groups", lambda m, F, x, w: m.conv_transpose2d(
        x, w, None, (2, 1), (0, 1), (2, 0), 2, (3, 2)), [(n(1, 4, 3, 2), n(4, 1, 2, 3))]),
    row("conv_transpose1d", lambda m, F, x, w, b: F.conv_transpose1d(x, w, b, 3, 1, 2),
        [(n(2, 4, 5), n(4, 2, 3), n(2)), (n(4, 5), n(4, 2, 3), n(2))]),
    row("instance_norm", lambda m, F, x, w, b: F.instance_norm(x, None, None, w, b),
        [(n(2, 3, 4), n(3), n(3)), (n(1, 2, 3, 2), n(2), n(2))]),
    row("max_pool1d", lambda m, F, x: F.max_pool1d(x, 3, 2, 1, ceil_mode=True),
        [apart(2, 2, 6), apart(2, 5)]),
    row("max_pool2d indices", lambda m, F, x: F.max_pool2d(x, (2, 3), 2, 1, return_indices=True),
        [apart(1, 2, 5, 6)]),
    row("adaptive_max_pool2d", lambda m, F, x: F.adaptive_max_pool2d(x, (2, 3)),
        [apart(2, 2, 5, 7), apart(2, 3, 3), n(0, 2, 4, 4)]),
    row("adaptive_max_pool2d indices", lambda m, F, x: F.adaptive_max_pool2d(
        x, (None, 2), return_indices=True), [apart(1, 2, 3, 5)]),
]

BAGS = np.array([3, 1, 1, 0, 4, 2, 1]), np.array([0, 3, 3, 6])
EMBEDDING = [
    row(f"embedding_bag {mode}", lambda m, F, w, i, o, mode=mode: F.embedding_bag(
        i, w, o, mode=mode, padding_idx=1) + F.embedding_bag(i[:4].reshape(2, 2), w, mode=mode)[:1],
        [(apart(5, 3), *BAGS)]) for mode in ("sum", "mean", "max")
] + [
    row("embedding_bag weights", lambda m, F, w, i, o, s: F.embedding_bag(
        i, w, o, mode="sum", per_sample_weights=s), [(n(5, 3), *BAGS, n(7))]),
    row("embedding_bag last", lambda m, F, w, i, o: F.embedding_bag(
        i, w, o, include_last_offset=True), [(n(5, 3), BAGS[0], np.array([0, 2, 7]))]),
]

LOG = np.log(p(3, 4) / 9)
LOSSES = [
    row(f"{name} {reduction}", lambda m, F, a, b, name=name, reduction=reduction: getattr(F, name)(
        a, b, reduction=reduction), inputs)
    for name, inputs in [("smooth_l1_loss", [(2 * n(3, 4), n(3, 4)), (n(0, 4), n(0, 4))]),
                         ("huber_loss", [(2 * n(3, 4), n(3, 4))]), ("kl_div", [(LOG, p(3, 4) / 9)])]
    for reduction in ("sum", "none", "mean")
    # of no elements the mean is nan; PyTorch warns of kl_div's
    if reduction != "mean" or name == "huber_loss"
] + [
    row("smooth_l1_loss beta", lambda m, F, a, b: F.smooth_l1_loss(a, b, beta=0.3)
        + F.smooth_l1_loss(a, b, beta=0.0), [(n(3, 4), n(3, 4))]),
    row("huber_loss delta", lambda m, F, a, b: F.huber_loss(a, b, delta=0.3), [TWO[0]]),
    row("kl_div batchmean", lambda m, F, a, b: F.kl_div(a, b, reduction="batchmean"),
        [(LOG, p(3, 4) / 9)]),
    row("kl_div logs", lambda m, F, a, b: F.kl_div(a, b, reduction="sum", log_target=True),
        [(LOG, LOG[::-1].copy())]),
]

ROWS = (ORDER + SCATTERS + ARRANGED + EINSUM + UNARY + ROUNDING + NORMS + ACTIVATIONS + IMAGES
        + EMBEDDING + LOSSES)
