"""A GPT on a grid of ranks: its layers in stages (pp), their matrices in parts (tp), all of that in
replicas (dp); what a rank sends along each axis, counted and by formula.

The plain form, for layers of two matrices: minidl/plain/grid.py.

    axes = Grid(Ledger(t), dp=2, pp=2, tp=2)               8 ranks
    ours = GridGPT(nn.GPT(...), axes, n_micro=4)            the same whole GPT on every rank
    optimizer = optim.AdamW(ours.trained(), lr=1e-3)
    loss = ours.step(x, y)                                 x, y: this replica's part of the batch
    ours.sent()                                            grows by ours.bytes_sent(n_tokens)

Of a micro-batch of n tokens, activations are n x width numbers:
    tp    in each block an all-reduce of them after the attention and one after the feed-forward
          layers, as many in backward; one for the embedding, one in backward of the output layer,
          and the three numbers a token of the divided cross entropy (vocabulary.py)
    pp    them to the next stage, their gradient back; a tied weight's gradient, at the end
    dp    the gradients, as data parallelism or ZeRO sends them
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
    """This rank's part of `gpt`, trained by 1F1B on the mean cross entropy of n_micro
    micro-batches.

    level       of mixed precision; for others than "O0", prepare=amp.prepare
    options     Pipeline's: zero=1, recompute=True

    parallel    the Pipeline, which a snapshot saves
    modules     its stages
    wrapped     what holds their buckets
    dp          the transport of the replicas"""

    def __init__(self, gpt, axes, n_micro, level="O0", prepare=None, **options):
        self.axes, self.dp, self.level = axes, axes.dp, level
        n_classes, self.width = gpt.head.weight.shape
        stages = cut(parallelize(gpt, axes, split_logits=True), axes.pp.size)
        for stage in stages if level != "O0" else ():
            prepare(stage, level)

        def loss(logits, target):  # of this rank's columns of the logits
            rows = logits.reshape(-1, logits.shape[2])
            return vocabulary.cross_entropy(axes.tp, rows, target.reshape(-1), n_classes)

        self.parallel = Pipeline(axes.pp, stages, loss, one_f_one_b(axes.pp.size, n_micro),
                                 dp=axes.dp, **options)
        self.modules = nn.ModuleList(self.parallel.stages.values())
        self.wrapped = list(self.parallel.replicas.values())
        self.n_params = sum(p.numel() for p in self.parallel.parameters())

    def named_parameters(self):
        """By their names in the whole model."""
        return [named for stage in self.modules for named in stage.named_parameters()]

    def trained(self):
        """What the optimizer is given."""
        return self.parallel.shards() if self.parallel.zero else self.parallel.parameters()

    def step(self, x, y, scaler=None):
        """New gradients; the loss where it is known. Under no_grad: forward alone."""
        self.parallel.zero_grad()
        return self.parallel.step(x, y, scaler=scaler)

    def everywhere(self, loss):
        """`step`'s loss as a float on every rank of a replica."""
        return self.parallel.everywhere(loss)

    def copies(self):
        """[(a transport, arrays that are equal on all of its ranks)]: every weight in dp, in tp
        those that it does not divide."""
        own = self.parallel.parameters()
        return [(self.axes.dp, [p.array for p in own]),
                (self.axes.tp, [p.array for p in own if p.part is None])]

    def whole_state(self):
        """The undivided GPT's {name: Tensor}, on the first rank of each pipeline; None on the
        others. A large one would not fit there: that is what snapshots are for."""
        mine = {name: x for stage in self.modules for name, x in whole_state_dict(stage).items()}
        states = objects.gather(self.axes.pp, mine)
        return states and {name: x for state in states for name, x in state.items()}

    def sent(self):
        """A Counter of the bytes that this rank has sent along each axis; axes.t is a Ledger."""
        axes, tied = self.axes, [group.ranks for _, group in self.parallel.tied]
        groups = {"tp": {axes.tp.ranks}, "dp": {axes.dp.ranks}, "pp": {axes.pp.ranks, *tied}}
        return Counter({axis: sum(axes.t.count(group=ranks).bytes_sent for ranks in of
                                  if len(ranks) > 1) for axis, of in groups.items()})

    def bytes_sent(self, n_tokens):
        """{axis: bytes that this rank sends along it in a step}, where its replica has n_tokens:
        exact in float32, and in float16 where the ranks of tp divide the activations evenly."""
        tp, pp, pipe = self.axes.tp, self.axes.pp, self.parallel
        first, last = pp.rank == 0, pp.rank == pp.size - 1
        n_tokens //= pipe.n_micro
        n_blocks = sum(len(stage.blocks) for stage in self.modules)
        # bytes a number; autocast sums products in float16, gradients of its inputs are float32
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
