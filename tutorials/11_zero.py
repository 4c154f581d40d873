"""11  ZeRO: shard the optimizer, the gradients, the weights.    60 minutes, needs: 06, 07

With more ranks, each rank holds fewer bytes. Stages 1 and 2 send no more than data parallelism.

    mpirun -n 4 python tutorials/11_zero.py           or: minidl run -n 4 tutorials/11_zero.py
    python tutorials/11_zero.py --sim 4               picture: out/11_zero.png

In data parallelism each of p ranks holds the same 16 bytes a parameter: weight 2 and gradient 2 in
float16, master weight 4 and Adam's m and v 4 + 4 in float32. But a rank needs the last 12 bytes
only for the parameters that it updates. So let each rank update its share, X/p of the X parameters:

    stage   weights  gradients  master, m, v      in total        a rank sends (p-1)/p 2X times ...
      0       2X        2X         12X            16X             2: an all-reduce of gradients
      1       2X        2X         12X/p          4X + 12X/p      1 + 1: reduce-scatter them, then
      2       2X        2X/p       12X/p          2X + 14X/p             all-gather the weights
      3       2X/p      2X/p       12X/p          16X/p           1 + 2: gather for forward, free,
                                                                         gather for backward

An all-reduce is a reduce-scatter, then an all-gather (07). Stages 1 and 2 put the update between
them. After the reduce-scatter a rank has the whole sum of its share. The all-gather then carries
new weights, not gradients. In stage 3 no rank holds all weights: the ranks gather every layer
before they use the layer, twice a step. In this script the parameters outside the layers (the
embeddings and the last norm) are gathered once a step.

If p does not divide a layer's size, the first shares have one more element. There is no padding.

Paper: Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models", SC 2020 (arXiv 1910.02054).
Exercises: `minidl exercise 11` writes work/11_zero.py with the marked regions empty;
`minidl check 11` grades it.
"""

import numpy as np

import minidl
from minidl import memory, nn, optim
from minidl.comm import Ledger, chunks, ring_blocks
from minidl.course.out import GREY, line_at
from minidl.course.tutorial import Table, launch, picture, put, say
from minidl.data import text
from minidl.nn import functional as F
from minidl.parallel import DataParallel, Zero1, Zero2, Zero3
from minidl.precision import amp

STAGES = [DataParallel, Zero1, Zero2, Zero3]
KINDS = ("parameters", "gradients", "master weights", "optimizer")


class Layer:
    """The layer tanh(x @ w). This rank keeps a share of the weight w.

    whole   w, (n_in, n_out); None after free(), until gather()
    own     this rank's share of w's elements; rank r has elements bounds[r] : bounds[r+1]
    grad    this rank's share of the mean gradient"""

    def __init__(self, t, w):
        self.t = t
        self.shape = w.shape
        self.whole = None
        self.bounds = chunks.bounds(w.size, t.size)
        self.own = self.share(w).copy()

    def share(self, array):
        start, stop = self.bounds[self.t.rank], self.bounds[self.t.rank + 1]
        return array.reshape(-1)[start:stop]

    def gather(self):
        """Makes the whole weight from the shares of all ranks."""
        flat = np.empty_like(self.own, shape=self.bounds[-1])  # on the same device as self.own
        memory.note(flat, "parameters")
        # >>> exercise 11a: gather a weight
        # Fill `flat` with the elements of the whole weight. This rank has only the elements of
        # self.share(flat), in self.own. A ring all-gather, ring_blocks.all_gather(t, flat, bounds),
        # sends each block p-1 times. So each rank sends (p-1)/p of the weight's bytes. (p
        # broadcasts, one from each owner, bring the same elements. How many bytes do they send?)
        self.share(flat)[...] = self.own
        ring_blocks.all_gather(self.t, flat, self.bounds)
        # <<<
        self.whole = flat.reshape(self.shape)

    def free(self):
        self.whole = None

    def scatter(self, gradient):
        """Sets self.grad to this rank's share of the mean gradient. gradient: this rank's gradient
        of the whole w."""
        flat = gradient.reshape(-1)
        self.grad = ring_blocks.reduce_scatter(self.t, flat, self.bounds) / self.t.size


def step(layers, x, target):
    """Runs forward on x, and backward of the mean square error. Sets every layer's grad."""
    # >>> exercise 11b: gather before use, free after
    # The code below is stage 2: every rank always holds all weights.
    #     inputs = []
    #     for layer in layers:
    #         inputs.append(x)
    #         x = np.tanh(x @ layer.whole)
    #     gx = 2 * (x - target) / x.size
    #     for layer, before in zip(reversed(layers), reversed(inputs)):
    #         g = gx * (1 - x * x)
    #         layer.scatter(before.T @ g)
    #         gx = g @ layer.whole.T
    #         x = before
    # Make this code stage 3 with layer.gather() and layer.free(). Never hold two whole layers.
    inputs = []
    for layer in layers:
        inputs.append(x)
        layer.gather()
        x = np.tanh(x @ layer.whole)
        layer.free()
    gx = 2 * (x - target) / x.size
    for layer, before in zip(reversed(layers), reversed(inputs), strict=True):
        g = gx * (1 - x * x)
        layer.scatter(before.T @ g)
        layer.gather()
        gx = g @ layer.whole.T
        layer.free()
        x = before
    # <<<


def sharded_adam(t, w, gradient, m, v, k, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    """Does step k = 1, 2, ... of Adam by ZeRO stage 1. Changes w, m and v in place.

    w, gradient    (n,): all weights, equal on all ranks; this rank's gradient of all weights
    m, v           Adam's two means, only for this rank's share: bounds[rank] : bounds[rank + 1]"""
    # >>> exercise 11c: a step of the sharded optimizer
    # There are three parts. 1. Reduce-scatter the gradient. This rank gets the sum over the ranks,
    # for its share, and needs the mean. 2. Update m, v and this rank's share of w, as Adam does:
    #     m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
    #     w -= lr * m / (1 - beta1^k) / (sqrt(v / (1 - beta2^k)) + eps)
    # 3. All-gather w. The shares are chunks.bounds(w.size, t.size). m and v are the caller's
    # arrays: write into them.
    bounds = chunks.bounds(w.size, t.size)
    mine = slice(bounds[t.rank], bounds[t.rank + 1])
    g = ring_blocks.reduce_scatter(t, gradient, bounds) / t.size
    m[:] = beta1 * m + (1 - beta1) * g
    v[:] = beta2 * v + (1 - beta2) * g**2
    w[mine] -= lr * m / (1 - beta1**k) / (np.sqrt(v / (1 - beta2**k)) + eps)
    ring_blocks.all_gather(t, w, bounds)
    # <<<


def sharded_optimizer(t, args, table, n):
    """Compares three steps of exercise 11c with minidl's Adam on whole gradients.

    Adds rows to the table."""
    ledger = Ledger(t)
    rng = np.random.default_rng(2)
    w = put(args, rng.normal(size=n))
    whole = minidl.Tensor(w.copy(), requires_grad=True)
    adam = optim.Adam([whole], lr=1e-3)
    own = chunks.size(n, t.size, t.rank)
    m, v = np.zeros_like(w[:own]), np.zeros_like(w[:own])
    for k in (1, 2, 3):
        gradients = put(args, rng.normal(size=(t.size, n)))  # row r is the gradient of rank r
        whole.grad = minidl.Tensor(gradients.mean(axis=0))
        adam.step()
        ledger.reset()
        sharded_adam(ledger, w, gradients[t.rank].copy(), m, v, k)

    table.row("sharded Adam: difference from minidl's Adam", float(abs(w - whole.array).max()), 0.0,
              "abs<1e-12")  # the ring adds float64 numbers in another order
    table.row("sharded Adam: bytes sent (theory: an all-reduce)", ledger.bytes_sent,
              ring_blocks.bytes_sent(chunks.bounds(n, t.size), 8, t.rank, n_scatters=1,
                                     n_gathers=1), "exact")
    table.row("sharded Adam: bytes of m and v", m.nbytes + v.nbytes, 2 * 8 * own, "exact")


def by_hand(t, args, table, width, n_layers):
    """Compares two numbers of exercises 11a and 11b with formulas. These are the bytes sent, and
    the largest number of bytes of whole weights that a rank holds."""
    ledger = Ledger(t)
    rng = np.random.default_rng(0)  # the same weights on every rank
    weights = [put(args, rng.normal(size=(width, width)) / width**0.5) for _ in range(n_layers)]
    layers = [Layer(ledger, w) for w in weights]

    rng = np.random.default_rng([1, t.rank])  # each rank has its own samples
    x, target = put(args, rng.normal(size=(2, 8, width)))
    with memory.record() as held:
        step(layers, x, target)

    # Each layer has one reduce-scatter and two all-gathers. Each of the three sends (p-1)/p of the
    # layer's bytes
    sent_by_layer = ring_blocks.bytes_sent(layers[0].bounds, 8, t.rank, n_scatters=1, n_gathers=2)
    theory = n_layers * sent_by_layer
    table.row("by hand: bytes sent by this rank", ledger.bytes_sent, theory, "exact")

    one_layer = 8 * width**2  # bytes, in float64
    table.row("by hand: most bytes of whole weights", held.most("parameters"), one_layer, "exact")


def train(t, stage, args, half):
    """Trains a GPT on the standard library's text for args.steps steps.

    half: True for float16 with float32 masters. Returns (losses, a list with the bytes of each kind
    in KINDS between steps, bytes sent in the last step, the parallel model, the memory ledger of
    the last step)."""
    t = Ledger(t)
    minidl.manual_seed(0)
    module = put(args, nn.GPT(256, args.context, args.layers, 4, args.width))
    if half:
        amp.prepare(module, "O2")
    model = STAGES[stage](module, t)
    parameters = model.shards() if stage else module.parameters()
    optimizer = optim.AdamW(parameters, lr=1e-3)
    if half:
        optim.use_master_weights(optimizer)
    corpus = text.stdlib_corpus(1 << 18)
    batches = text.random_batches(corpus, 2, args.context, t.rank, t.size, 0)

    losses = []
    for _ in range(args.steps):
        x, y = next(batches)
        x = put(args, x)
        y = put(args, y)
        t.reset()
        with memory.record(model.module, optimizer) as held:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x).reshape(-1, 256), y.reshape(-1))
            (loss * 256.0).backward()  # without a loss scale small float16 gradients become 0
            optimizer.step(unscale=1 / 256.0)
            if stage:
                model.gather()
        losses.append(loss.item())

    totals = memory.totals(model.module, optimizer)
    states = [totals[kind] for kind in KINDS]
    sent = t.bytes_sent
    model.close()  # stage 3: gathers all weights
    return losses, states, sent, model, held


def n_whole(model):
    """Returns X, the number of elements of all parameters."""
    return sum(p.numel() for p in model.module.parameters())


def n_own(model, stage):
    """Returns the number of elements that this rank updates: about X/p, or X in stage 0."""
    if stage == 0:
        return n_whole(model)
    return sum(len(shard.array) for shard in model.shards())


def bytes_held(stage, whole, own):
    """Returns a list with the bytes of each kind in KINDS, by the table at the top of this file.
    whole: X; own: X/p."""
    weights = own if stage == 3 else whole
    gradients = own if stage >= 2 else whole
    return [2 * weights, 2 * gradients, 4 * own, 4 * own + 4 * own]


def largest_of_stage_3(model, own):
    """Returns the largest number of bytes of weights that a rank holds in a step of stage 3.

    This is the sum of the rank's share, the root's weights (those outside the layers), and two
    gathered layers."""
    root = sum(2 * bucket.bounds[-1] for bucket in model.root)
    layers = [2 * bucket.bounds[-1] for bucket in model.reducer.buckets
              if bucket not in model.root]
    two_layers = sum(sorted(layers)[-2:])
    return 2 * own + root + two_layers


def main(t, args):
    table = Table(t)
    by_hand(t, args, table, width=24, n_layers=5)
    sharded_optimizer(t, args, table, n=1001)

    say(t, f"A GPT of {args.layers} layers, width {args.width}, in float16 with float32 masters.")
    measured = []
    formulas = ["16X", "4X + 12X/p", "2X + 14X/p", "16X/p"]
    for stage, formula in enumerate(formulas):
        _, states, sent, model, held = train(t, stage, args, half=True)
        whole = n_whole(model)
        own = n_own(model, stage)
        theory = bytes_held(stage, whole, own)
        table.row(f"stage {stage}: bytes held, {formula}", sum(states), sum(theory), "exact")
        if stage:  # DataParallel sums in float32, so stage 0 sends twice the bytes of the table
            table.row(f"stage {stage}: bytes sent in a step", sent, model.bytes_sent(), "exact")
        measured.append((states, theory))

    bound = largest_of_stage_3(model, own)
    table.row("stage 3: bytes of weights at the peak", held.most("parameters"), bound, "exact")

    plain, *_ = train(t, 0, args, half=False)
    for stage in (1, 2, 3):
        losses, *_ = train(t, stage, args, half=False)
        error = np.abs(np.subtract(losses, plain)).max()
        # In float32 the ranks add in another order. Adam's division makes the difference larger
        table.row(f"stage {stage}: losses, difference from stage 0", float(error), 0.0, "abs<1e-5")

    share = 2 * own  # bytes, in float16
    picture(t, args, draw, t.size, measured, held, share, bound, 2 * whole)
    return table


def draw(plt, p, measured, held, share, bound, whole):
    """Draws the bytes of each kind for each stage, measured and by formula (left). Right: the bytes
    of weights over a step of stage 3."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5.2), width_ratios=[1, 1.25])
    colours = ["#2171b5", "#6baed6", "#fdae6b", "#e6550d"]
    labels = ["weights", "gradients", "master weights", "m and v"]
    states = np.array([s for s, _ in measured]) / 2**20  # (stage, kind)
    theory = np.array([t for _, t in measured]) / 2**20
    stages = np.arange(4)
    for kind, (colour, label) in enumerate(zip(colours, labels, strict=True)):
        for shift, values, style in ((-0.2, states, {"label": label}),
                                     (0.2, theory, {"alpha": 0.45, "hatch": "//"})):
            left.bar(stages + shift, values[:, kind], 0.36, values[:, :kind].sum(1), color=colour,
                     edgecolor="white", linewidth=0.6, **style)
    for stage, total in enumerate(states.sum(1)):
        left.text(stage, 1.02 * total, f"{2 * 2**20 * total / whole:.2f} B\na parameter",
                  ha="center", va="bottom", fontsize=10)
    left.set_xticks(stages, ["data\nparallel", "stage 1", "stage 2", "stage 3"])
    left.set(ylabel="MiB held by rank 0", title=f"{p} ranks: measured, and (hatched) the formula",
             ylim=(0, 1.18 * theory[0].sum()))
    left.legend(loc="upper right")

    weights = [h["parameters"] / 2**20 for _, h in held.timeline]
    right.fill_between(range(len(weights)), weights, step="post", color="#2171b5", alpha=0.25)
    right.step(range(len(weights)), weights, where="post", color="#2171b5", linewidth=1.4)
    start = next(i for i, (label, _) in enumerate(held.timeline) if label.endswith(".backward"))
    line_at(right, "backward", x=start, at=0, color=GREY)
    for n_bytes, name in ((share, "this rank's share, X/p"), (bound, "share + root + two layers"),
                          (whole, "all weights, as in stage 2")):
        line_at(right, name, y=n_bytes / 2**20, at=0.86)
    right.set(xlabel="events of one step (arrays made and freed)", ylabel="MiB of weights held",
              title="Stage 3: gather, use, free", ylim=(0, 1.12 * whole / 2**20),
              xlim=(0, 1.02 * len(weights)))
    return figure


OPTIONS = {
    "steps": (2, "training steps of each stage"),
    "layers": (6, "transformer blocks"),
    "width": (48, "width of the residual stream, a multiple of 4"),
    "context": (32, "bytes of text in a sequence"),
}

if __name__ == "__main__":
    launch(main, OPTIONS, ranks=4)
