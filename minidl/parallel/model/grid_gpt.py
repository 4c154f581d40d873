"""A GPT on a grid of ranks: layers in stages (pp), matrices in parts (tp), replicas (dp).

GridGPT also has two methods for the bytes that a rank sends along each axis. `sent()` counts these
bytes, and `bytes_sent()` computes them by a formula.

The plain form, for layers of two matrices: minidl/plain/grid.py.

    axes = Grid(Ledger(t), dp=2, pp=2, tp=2)               8 ranks
    ours = GridGPT(nn.GPT(...), axes, n_micro=4)            the same whole GPT on every rank
    optimizer = optim.AdamW(ours.trained(), lr=1e-3)
    loss = ours.step(x, y)                                 x, y: this replica's part of the batch
    ours.sent()                                            grows by ours.bytes_sent(n_tokens)

What is sent for a micro-batch of n tokens, with activations of n x width numbers:
    tp    all-reduces of activations: in each block two in forward and two in backward, one after
          the embedding, and one in the backward of the output layer. The divided cross entropy
          sends three numbers for each token (vocabulary.py)
    pp    activations to the next stage, and in backward their gradients to the previous stage. At
          the end of a step, the gradient of a tied weight
    dp    gradients, as data parallelism or ZeRO sends them, once in a step
Test: tests/parallel/model/test_grid_gpt.py   Tutorial: tutorials/train_gpt.py
"""

from collections import Counter

from minidl import nn
from minidl.comm import objects, ring
from minidl.parallel.model import vocabulary
from minidl.parallel.model.cut import cut
from minidl.parallel.model.parallelize import parallelize, whole_state_dict
from minidl.parallel.model.pipeline import HEADER_BYTES, Pipeline
from minidl.parallel.model.schedule import one_f_one_b


class GridGPT:
    """This rank's part of `gpt`. It is trained by 1F1B on the mean cross entropy of n_micro
    micro-batches.

    axes        the Grid of ranks
    level       the level of mixed precision. If it is not "O0", pass prepare=amp.prepare
    options     arguments for Pipeline, such as zero=1, recompute=True

    The attributes are:

    parallel    the Pipeline. Save this object in a snapshot
    modules     this rank's stages
    wrapped     the DataParallel or ZeRO wrappers of these stages
    dp          the transport of the replicas"""

    def __init__(self, gpt, axes, n_micro, level="O0", prepare=None, **options):
        self.axes, self.dp, self.level = axes, axes.dp, level
        n_classes, self.width = gpt.head.weight.shape
        stages = cut(parallelize(gpt, axes, split_logits=True), axes.pp.size)
        for stage in stages if level != "O0" else ():
            prepare(stage, level)

        def loss(logits, target):  # logits: this rank's columns
            rows = logits.reshape(-1, logits.shape[2])
            return vocabulary.cross_entropy(axes.tp, rows, target.reshape(-1), n_classes)

        self.parallel = Pipeline(axes.pp, stages, loss, one_f_one_b(axes.pp.size, n_micro),
                                 dp=axes.dp, **options)
        self.modules = nn.ModuleList(self.parallel.stages.values())
        self.wrapped = list(self.parallel.replicas.values())
        self.n_params = sum(p.numel() for p in self.parallel.parameters())

    def named_parameters(self):
        """Returns a list of (name in the whole model, parameter), for the parameters of this
        rank."""
        return [named for stage in self.modules for named in stage.named_parameters()]

    def trained(self):
        """Returns a list for the optimizer: the parameters, or with ZeRO the shards."""
        return self.parallel.shards() if self.parallel.zero else self.parallel.parameters()

    def step(self, x, y, scaler=None):
        """Runs forward and backward of a batch. Under no_grad it runs only forward. Returns the
        loss on the ranks of the last stage, and None on the other ranks."""
        self.parallel.zero_grad()
        return self.parallel.step(x, y, scaler=scaler)

    def everywhere(self, loss):
        """Returns step()'s loss as a float, on every rank of a replica."""
        return self.parallel.everywhere(loss)

    def copies(self):
        """Returns [(transport, arrays that are equal on all ranks of this transport)]. For dp these
        arrays are all weights. For tp they are the weights that are not divided."""
        own = self.parallel.parameters()
        return [(self.axes.dp, [p.array for p in own]),
                (self.axes.tp, [p.array for p in own if p.part is None])]

    def whole_state(self):
        """Returns the undivided GPT's {name: Tensor} on the first rank of each pipeline, and None
        on the other ranks. If the model is too large for one rank, use a snapshot. Collective."""
        mine = {name: x for stage in self.modules for name, x in whole_state_dict(stage).items()}
        states = objects.gather(self.axes.pp, mine)
        return states and {name: x for state in states for name, x in state.items()}

    def sent(self):
        """Returns a Counter of the bytes that this rank has sent along each axis. axes.t must be a
        Ledger."""
        axes, tied = self.axes, [group.ranks for _, group in self.parallel.tied]
        groups = {"tp": {axes.tp.ranks}, "dp": {axes.dp.ranks}, "pp": {axes.pp.ranks, *tied}}
        return Counter({axis: sum(axes.t.count(group=ranks).bytes_sent for ranks in of
                                  if len(ranks) > 1) for axis, of in groups.items()})

    def bytes_sent(self, n_tokens):
        """Returns {axis: bytes that this rank sends along this axis in a step}. n_tokens: the
        number of tokens of this rank's replica. The result is exact in float32. In float16 it is
        exact if the ranks of tp divide the activations evenly."""
        tp, pp, pipe = self.axes.tp, self.axes.pp, self.parallel
        first, last = pp.rank == 0, pp.rank == pp.size - 1
        n_tokens //= pipe.n_micro
        n_blocks = sum(len(stage.blocks) for stage in self.modules)
        # `forward` and `backward` are the bytes of a sent element. Under autocast the products are
        # float16, and the gradients of their inputs are float32.
        forward, backward = {"O0": (4, 4), "O1": (2, 4)}.get(self.level, (2, 2))
        embedding = 4 if self.level == "O1" else forward
        forwards = 2 if pipe.recompute else 1

        def sums(n, item):
            return n * ring.bytes_sent(n_tokens * self.width, item, tp.size, tp.rank)

        of_tp = forwards * (sums(2 * n_blocks, forward) + sums(first, embedding))
        of_tp += sums(2 * n_blocks + last, backward)
        of_tp += last * vocabulary.bytes_sent(n_tokens, 4, tp.size, tp.rank)
        of_pp = (2 - first - last) * pipe.n_micro * n_tokens * self.width * 4
        of_pp += (not last) * HEADER_BYTES
        of_pp += sum(ring.bytes_sent(p.numel(), p.dtype.itemsize, group.size, group.rank)
                     for p, group in pipe.tied)
        return {"tp": pipe.n_micro * of_tp, "pp": of_pp,
                "dp": sum(replica.bytes_sent() for replica in self.wrapped)}
