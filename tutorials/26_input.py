"""26  The input: loading ahead, lengths, pipes.    50 minutes, needs: 07; 13 helps with the GPT

    mpirun -n 2 python tutorials/26_input.py
    python tutorials/26_input.py --sim 2    picture: out/26_input.png

Batches can be loaded while the model computes. Loading a batch takes L seconds, and a step of
training takes S seconds. One after the other, they take L + S seconds. If k workers load batches
ahead, a step takes max(L / k, S). By Little's law, k = ceil(L / S) workers are enough to hide the
loading.

Texts have different lengths, and a batch is as long as its longest text. Shorter texts are padded,
and padding costs as much as text. If a batch has B random texts of lengths l, the share of padding
is

    waste = 1 - (mean of l) / (mean of the longest of B lengths)

Sorting avoids most padding: sort the texts within pools of 50 batches. Then the texts of a batch
have about equal lengths. Packing avoids it, too: put several texts into one row. Begin with the
longest text. Put each text into the first row that has room. Positions restart at every text, and a
block-diagonal mask keeps the texts of a row apart. With sorting and with packing the loss must be
the same as with single texts: the mean over the real tokens of all ranks.

In each step all ranks wait for the rank with the longest batch. So sort the batches, and give
batches of about equal length to the ranks of one step. Then the ranks hardly wait. All ranks need
the same number of batches, or the last step hangs.

A rank may also read its data from a program's output, a pipe. Then a rank does not know how many
records will come. Also, a program that fails looks like a program that has ended. So the ranks must
agree when the data ends, and that no program has failed.

Papers: Little 1961; Khomenko et al. 2016 (sorted pools); Krell et al. 2021 (arXiv 2107.02027).
Exercise: `minidl exercise 26` writes work/26_input.py to fill in, `minidl check 26` grades it.
"""

import math
import time

import numpy as np

import minidl
from minidl import nn, optim
from minidl.comm import ring
from minidl.course.out import BLUE, GREY, ORANGE
from minidl.course.tutorial import Table, launch, picture, progress, put, say
from minidl.data import Pipe, Pipeline, lengths, text
from minidl.data.prefetch import step_time, workers_for
from minidl.nn import functional as F
from minidl.parallel import DataParallel

VOCAB, LONGEST = 256, 256


def deal(batches, size, rng):
    """Deals batches to `size` ranks. Returns a list for each rank: entry k is its batch of step k.

    batches: lists of samples, sorted by length. So batches that are next to each other in the list
    have about equal lengths. rng: a NumPy generator."""
    # >>> exercise 26a: deal sorted batches to the ranks
    # Batches 0 to size - 1 are a group, the next `size` batches are the next group, and so on. The
    # ranks take the batches of a group in the same step, one batch each. Draw a random order of the
    # groups with rng, the same for all ranks. If the number of batches is not divisible by `size`,
    # cut the batch with the most samples in two halves, at its place in the list. Repeat this until
    # the number is divisible. So every sample comes once, and all ranks have the same number of
    # batches.
    batches = [list(batch) for batch in batches]
    while len(batches) % size:
        k = max(range(len(batches)), key=lambda i: len(batches[i]))
        half = (len(batches[k]) + 1) // 2
        batches[k : k + 1] = batches[k][:half], batches[k][half:]
    groups = [batches[i : i + size] for i in range(0, len(batches), size)]
    order = rng.permutation(len(groups))
    return [[groups[g][rank] for g in order] for rank in range(size)]
    # <<<


def modelled(load, step, workers, n):
    """Returns ([(begin, end, worker)] of n loads, [(begin, end)] of n steps of training).

    The times are computed, not measured. load, step: the time of one load, and of one step."""
    free = [0.0] * workers  # the time at which each worker is free
    loads = []
    steps = [(0.0, 0.0)] * (workers + 1)  # at first workers + 1 places are free
    for i in range(n):
        who = int(np.argmin(free))
        # Item i needs a free place. The first workers + 1 items have one at once. Each later item
        # waits until step number i - (workers + 1) has taken its own item.
        took, _ = steps[i]
        begin = max(free[who], took)
        loaded = begin + load
        loads.append((begin, loaded, who))
        free[who] = loaded

        _, last_end = steps[-1]
        begin = max(loaded, last_end)
        steps.append((begin, begin + step))
    return loads, steps[workers + 1 :]


def prefetching(args, table):
    """Compares the computed time of a step with max(L / k, S). Then measures real steps."""
    load, step = args.load, args.step
    k = workers_for(load, 0.0, step)
    for workers in range(1, k + 1):
        # `workers` loads can end at the same moment. So `late` is a multiple of `workers`.
        late = 20 * workers
        _, steps = modelled(load, step, workers, 3 * late)
        ends = [end for _, end in steps]
        found = (ends[-1] - ends[-1 - late]) / late
        theory = step_time(load, 0.0, step, workers)
        table.modelled(f"ms of a step, {workers} worker{'s' * (workers > 1)}", found, theory,
                       "rel<1e-9")

    loading = Pipeline(range(30)).map(lambda _: time.sleep(load / 1e3))
    for name, items, theory in (
            ("one after the other: L + S", loading, load + step),
            (f"Little's {k} workers", loading.prefetch(2, k), max(load / k, step))):
        begins = []
        for _ in items:
            begins.append(time.perf_counter())
            time.sleep(step / 1e3)
        found = 1e3 * float(np.diff(begins)[9:].mean())
        table.row(f"ms of a real step, {name}", found, theory)


def padding(t, table, sizes, batch):
    """Compares the padding with its formula. Adds to the table how long ranks wait.

    Returns {name: the batches}, for the picture. The names are "random", "sorted pools" and
    "packed"."""
    ways = {}
    for name, pool in (("random", 1), ("sorted pools", 50)):
        ways[name] = lengths.pools(sizes, batch, pool=pool)(0)
        waste = lengths.waste(sizes, ways[name])
        theory = lengths.expected_waste(sizes, batch, pool)
        table.row(f"padding, {name}", waste, theory, "abs<0.01")
    ways["packed"] = lengths.packs(sizes, LONGEST)(0)
    waste = lengths.waste(sizes, ways["packed"], LONGEST)
    table.row("padding, packed, at most", waste, 0.02, "<=")

    rng = np.random.default_rng(0)
    batches = lengths.pools(sizes, batch, pool=50 * t.size)(0)
    shares = deal(batches, t.size, rng)
    costs = []  # for each step and rank: the number of tokens of the batch, with padding
    for step in zip(*shares, strict=True):
        costs.append([len(samples) * sizes[samples].max() for samples in step])
    in_random_order = rng.permutation(np.ravel(costs)).reshape(-1, t.size)
    table.row("ranks wait, batches in random order", lengths.waiting(in_random_order))
    table.row("ranks wait, neighbours dealt, at most", lengths.waiting(costs), 0.1, "<=")

    n_dealt = sum(len(samples) for share in shares for samples in share)
    table.row("samples dealt", n_dealt, len(sizes), "exact")
    return ways


def loss_of(model, args, batch, **n_samples):
    """Returns the mean loss over real tokens.

    batch: (ids, targets), and for packed rows also the positions of the tokens in their texts.
    Padding has a target that cross entropy ignores."""
    ids, target, *positions = (put(args, x) for x in batch)
    scores = model(ids, *positions, **n_samples)
    return F.cross_entropy(scores.reshape(-1, VOCAB), target.reshape(-1))


def training(t, args, table, samples, sizes):
    """Trains a GPT on packed rows. First checks that packed and padded texts have the same loss."""
    minidl.manual_seed(0)
    gpt = put(args, nn.GPT(VOCAB, LONGEST, 2, 4, args.width))

    def pack(some):
        return lengths.pack(some, LONGEST)

    def packed(n):
        """Returns the first n texts, packed into rows."""
        return Pipeline(samples[:n]).group(lengths.packs(sizes[:n], LONGEST), pack)

    padded = lengths.pad(samples[:12])
    (rows,) = packed(12).batch(12)
    table.row("tokens when packed, at most when padded",
              rows[0].numel(), padded[0].numel(), "<=")
    found = loss_of(gpt, args, rows).item()
    alone = loss_of(gpt, args, padded).item()
    # The sums are in float32, and have a different order.
    table.row("loss when packed; theory: when padded", found, alone, "rel<1e-6")

    batches = packed(len(samples)).shard(t.rank, t.size).batch(args.rows).prefetch(2)
    model = DataParallel(gpt, t)
    sums = []
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    for batch in progress(t, batches, "training", args.steps):
        _, target, *_ = batch
        n_real = int((target >= 0).sum())
        optimizer.zero_grad()
        # The gradient of a rank has n_samples as its weight in the mean. Here this is the number of
        # real tokens.
        loss = loss_of(model, args, batch, n_samples=n_real)
        loss.backward()
        optimizer.step()
        here = np.array([n_real * loss.item(), n_real])
        sums.append(ring.all_reduce(t, here))
    model.close()

    total, n_real = np.transpose(sums)
    losses = total / n_real
    table.row(f"loss after {n_real.sum():,.0f} tokens, at most before", losses[-1], losses[0],
              "<=")


def piping(t, table):
    """Checks that pipes of different lengths give every record once.

    Then checks that every rank raises an error if the program of one rank fails."""
    pipe = Pipe("seq $((1000 * RANK + 1)) $((1100 * RANK + 50))", t, batch=64,
                parse=lambda lines: [int(line) for line in lines])
    steps = [records for records, _ in pipe]  # the last steps of rank 0 have no records
    n_here = sum(len(records) for records in steps)
    sum_here = sum(sum(records) for records in steps)
    n_found, sum_found = ring.all_reduce(t, np.array([n_here, sum_here]))

    there = [range(1000 * r + 1, 1100 * r + 51) for r in range(t.size)]
    n_steps = math.ceil(len(there[-1]) / 64)  # the last rank has the most records
    table.row("records from unequal pipes", n_found, sum(map(len, there)), "exact")
    table.row("their sum", sum_found, sum(map(sum, there)), "exact")
    table.row("steps of every rank", len(steps), n_steps, "exact")

    fault = ""
    try:  # rank 0 has the first 9000 bytes of a compressed file, other ranks the whole file
        list(Pipe("seq 20000 | gzip | head -c $((9000 + 100000 * RANK)) | gzip -dc", t, batch=512))
    except RuntimeError as error:
        fault = str(error).partition(" What")[0]
    say(t, fault)
    table.row("this rank raises the broken pipe's error", "ended with status" in fault, True,
              "exact")


def main(t, args):
    table = Table(t)
    prefetching(args, table)

    # The text of the standard library is cut at empty lines. Each piece is a sample.
    pieces = bytes(text.stdlib_corpus(1 << 20)).split(b"\n\n")
    ids = [np.frombuffer(piece[: LONGEST + 1], np.uint8).astype(np.int64)
           for piece in pieces if len(piece) > 1]
    samples = [(x[:-1], x[1:]) for x in ids]
    sizes = np.array([len(x) - 1 for x in ids])
    ways = padding(t, table, sizes, args.batch)
    training(t, args, table, samples, sizes)
    piping(t, table)
    picture(t, args, draw, args.load, args.step, sizes, ways, args.batch)
    return table


OPTIONS = {
    "load": (30.0, "ms that loading a batch takes"),
    "step": (10.0, "ms that a training step takes"),
    "batch": (32, "number of texts in a batch"),
    "rows": (4, "number of packed rows in a rank's batch"),
    "steps": (12, "number of training steps"),
    "width": (32, "width of the GPT, a multiple of 4"),
}


def draw(plt, load_ms, step_ms, sizes, ways, batch):
    """Draws loading and training with one worker and with enough workers (left). Right: the
    padding."""
    figure, (left, *right) = plt.subplots(1, 4, figsize=(14, 4), width_ratios=[2.4, 1, 1, 1])
    k, y = workers_for(load_ms, 0.0, step_ms), 0
    for workers in (1, k):
        loads, steps = modelled(load_ms, step_ms, workers, 8)
        for begin, end, who in loads:
            left.broken_barh([(begin, end - begin)], (y + who, 0.8), color=ORANGE, edgecolor="w")
        for begin, end in steps:
            left.broken_barh([(begin, end - begin)], (y + workers, 0.8), color=BLUE, edgecolor="w")
        left.text(0, y + workers + 0.9, f"{workers} worker{'s' * (workers > 1)} (orange), "
                                        "training (blue)", va="bottom")
        y += workers + 2.2
    left.set(xlabel="ms, modelled", yticks=[], ylim=(0, y + 0.4),
             title="A step takes max(L / k, S)")
    for axes, (name, batches) in zip(right, ways.items(), strict=True):
        if name == "packed":
            rows, wide = batches[:batch], LONGEST
        else:
            rows = [[i] for i in batches[len(batches) // 2]]
            wide = max(sizes[i] for row in rows for i in row)
        for y, row in enumerate(rows):
            axes.barh(y, wide, 1, color=GREY, alpha=0.45)
            begin = 0
            for i in row:
                axes.barh(y, sizes[i], 1, left=begin, color=BLUE, edgecolor="w", linewidth=0.6)
                begin += sizes[i]
        part = lengths.waste(sizes, batches, LONGEST if name == "packed" else None)
        axes.set(title=f"{name}:\n{part:.1%} padding", yticks=[], xlabel="tokens of a batch")
    return figure


if __name__ == "__main__":
    launch(main, OPTIONS, ranks=2)
