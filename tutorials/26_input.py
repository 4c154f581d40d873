"""26  The input: loading ahead, lengths, pipes.    50 minutes, needs: 06; 12 helps with the GPT

A step takes the larger of loading and computing, if you let it.

    mpirun -n 2 python tutorials/26_input.py
    python tutorials/26_input.py --sim 2    picture: out/26_input.png

Loading a batch takes L, a step of training S. One after the other: L + S. With k workers that load
ahead the slower side sets the pace, and Little's law says how many workers hide the loading:

    step = max(L / k, S)        k = ceil(L / S)

Texts have unequal lengths, and a batch is as long as its longest: the rest is padding, which costs
like text. Of batches of B random texts the part that is padding is

    waste = 1 - E[L] / E[max of B]

Sort the texts within pools of 50 batches, and the longest of a batch is like the others. Or pack
several texts into one row, the longest first, each into the first row that has room: positions
restart with every text, a block-diagonal mask keeps the texts apart, and nothing is computed in
vain. Both must give the loss of the texts alone: a mean over real tokens, on all ranks together.

Ranks step together, so all wait for the one with the longest batch. Deal neighbours of the sorted
batches to the ranks of one step, and nobody waits. Every sample once, and as many batches for each
rank: else the last step hangs.

Data may lie nowhere: a rank reads a program's output. Then nobody knows when it ends, and a program
that breaks off looks like one that has ended; ranks must agree on both.

Papers: Little 1961; Khomenko et al. 2016 (sorted pools); Krell et al. 2021 (arXiv 2107.02027).
Exercise: `minidl exercise 26` writes work/26_input.py with the marked region empty;
`minidl check 26` grades it.
"""

import gzip
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

import minidl
from minidl import nn, optim
from minidl.comm import objects, ring, tree
from minidl.course.out import BLUE, GREY, ORANGE
from minidl.data import Pipe, Pipeline, lengths, text
from minidl.data.ahead import step_time, workers_for
from minidl.nn import functional as F
from minidl.parallel import DataParallel
from minidl.tutorial import Table, host, launch, picture, progress, put, say

VOCAB, LONGEST = 256, 256


def deal(batches, size, rng):
    """Batches for `size` ranks: a list for each rank, in which step k's batch stands at place k.

    batches: lists of samples, sorted by length, so that neighbours are alike. rng: NumPy's."""
    # >>> exercise 26a: deal sorted batches to the ranks
    # Neighbours belong to the same step: batches 0 to size - 1 are a group, one for each rank, and
    # so on. The groups come in random order, drawn with rng, the same for all ranks. `size` may not
    # divide the number of batches: then cut the batches with the most samples in halves, in their
    # place, until it does. So every sample comes once, and all ranks have as many batches.
    batches = [list(batch) for batch in batches]
    while len(batches) % size:
        k = max(range(len(batches)), key=lambda i: len(batches[i]))
        half = (len(batches[k]) + 1) // 2
        batches[k : k + 1] = batches[k][:half], batches[k][half:]
    groups = [batches[i : i + size] for i in range(0, len(batches), size)]
    order = rng.permutation(len(groups))
    return [[groups[g][rank] for g in order] for rank in range(size)]
    # <<<


def modelled(load_s, step_s, workers, n=None):
    """(seconds of a step, when it runs steadily; [(begin, end)] of loads; the same of steps)."""
    free, loads, steps = [0.0] * workers, [], []
    for i in range(n or 60 * workers):
        who = int(np.argmin(free))
        place = steps[i - workers - 1][0] if i > workers else 0.0  # an item is taken: room for one
        begin = max(free[who], place)
        free[who] = begin + load_s
        loads.append((begin, begin + load_s, who))
        begin = max(begin + load_s, steps[-1][1] if steps else 0.0)
        steps.append((begin, begin + step_s))
    late = 20 * workers  # whole rounds: the workers of one may end together
    return (steps[-1][1] - steps[-1 - late][1]) / late if n is None else None, loads, steps


def prefetching(t, args, table):
    """A step by a modelled clock beside max(L / k, S); then by a real one."""
    load_s, step_s = args.load / 1e3, args.step / 1e3
    k = workers_for(load_s, 0.0, step_s)
    say(t, f"loading {args.load:g} ms, a step {args.step:g} ms: Little wants {k} workers")
    for workers in range(1, k + 1):
        table.modelled(f"ms of a step, {workers} worker{'s' * (workers > 1)}",
                       1e3 * modelled(load_s, step_s, workers)[0],
                       1e3 * step_time(load_s, 0.0, step_s, workers), "rel<1e-9")
    if t.rank:
        return

    def load(i):
        time.sleep(load_s)
        return i

    for name, pipeline in (("one after the other", Pipeline(range(30)).map(load)),
                           (f"{k} workers", Pipeline(range(30)).map(load).prefetch(2, k))):
        for i in pipeline:
            if i == 9:
                start = time.perf_counter()
            time.sleep(step_s)
        took = 1e3 * (time.perf_counter() - start) / 21
        say(t, f"  {name}: {took:.1f} ms a step, measured")


def paragraphs():
    """Pieces of the standard library between empty lines, as (ids, targets); real lengths."""
    pieces = bytes(text.stdlib_corpus(1 << 20)).split(b"\n\n")
    pieces = [np.frombuffer(p[: LONGEST + 1], np.uint8).astype(np.int64) for p in pieces
              if len(p) > 1]
    return [(p[:-1], p[1:]) for p in pieces]


def padding(t, table, samples, batch):
    """Waste beside its formula, and how long ranks wait; the three ways, for the picture."""
    sizes = np.array([len(ids) for ids, _ in samples])
    ways = {"random": lengths.pools(sizes, batch, pool=1)(0),
            "sorted pools": lengths.pools(sizes, batch, pool=50)(0),
            "packed": lengths.packs(sizes, LONGEST)(0)}
    for name, pool in (("random", 1), ("sorted pools", 50)):
        table.row(f"padding, {name}", lengths.waste(sizes, ways[name]),
                  lengths.expected_waste(sizes, batch, pool), "abs<0.01")
    table.row("padding, packed, at most", lengths.waste(sizes, ways["packed"], LONGEST), 0.02, "<=")

    def waiting(shares):
        return lengths.waiting([[len(b) * sizes[b].max() for b in step]
                                for step in zip(*shares, strict=True)])

    batches, rng = ways["sorted pools"], np.random.default_rng(0)
    some = [batches[i] for i in rng.permutation(len(batches))]
    some = some[: len(some) // t.size * t.size]
    apart = waiting([some[r :: t.size] for r in range(t.size)])
    shares = deal(batches, t.size, rng)
    say(t, f"ranks wait {apart:.1%} of their time for the longest of {t.size} random batches")
    table.row("ranks wait, neighbours dealt, at most", waiting(shares), 0.1, "<=")
    table.row("samples dealt", sum(len(b) for share in shares for b in share), len(samples),
              "exact")
    table.row("batches of rank 0 and of the last", len(shares[0]), len(shares[-1]), "exact")
    return sizes, ways


def training(t, args, table, samples):
    """A GPT on packed rows; before it, that packed texts cost what they cost alone."""
    minidl.manual_seed(0)
    gpt = put(args, nn.GPT(VOCAB, LONGEST, 2, 4, args.width))
    few = samples[:12]
    with minidl.no_grad():
        padded = [put(args, x) for x in lengths.pad(few)]
        alone = F.cross_entropy(gpt(padded[0]).reshape(-1, VOCAB), padded[1].reshape(-1)).item()
        rows = lengths.first_fit_decreasing([len(ids) for ids, _ in few], LONGEST)
        ids, target, positions = (put(args, np.stack(field)) for field in zip(
            *(lengths.pack([few[i] for i in row], LONGEST) for row in rows), strict=True))
        packed = F.cross_entropy(gpt(ids, positions).reshape(-1, VOCAB), target.reshape(-1)).item()
    say(t, f"{len(few)} texts: {padded[0].size:,} places when padded, {ids.size:,} when packed")
    table.row("loss of packed texts", packed, alone, "rel<1e-6")  # float32, sums in another order

    sizes = [len(ids) for ids, _ in samples]
    batches = (Pipeline(samples)
               .group(lengths.packs(sizes, LONGEST), partial(lengths.pack, capacity=LONGEST))
               .shard(t.rank, t.size).batch(args.rows).prefetch(2))
    model, losses, n_real = DataParallel(gpt, t), [], 0
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    for batch in progress(t, batches, "training", args.steps):
        ids, target, positions = (put(args, x) for x in batch)
        here = int((batch[1] >= 0).sum())
        optimizer.zero_grad()
        logits = model(ids, positions, n_samples=here)  # gradients weighted by real tokens
        loss = F.cross_entropy(logits.reshape(-1, VOCAB), target.reshape(-1))
        loss.backward()
        optimizer.step()
        both = ring.all_reduce(t, np.array([here * loss.item(), here]))
        losses.append(both[0] / both[1])
        n_real += both[1]
    model.close()
    say(t, f"trained on {n_real:,.0f} tokens in {args.steps} steps: loss {losses[0]:.2f} to "
           f"{losses[-1]:.2f}")
    table.row("loss after training, at most", losses[-1], losses[0], "<=")
    same = np.abs(objects.all_gather(t, host(gpt.token.weight.data)) - host(gpt.token.weight.data))
    table.row("weights unlike another rank's", float(same.max()), 0.0, "exact")


def piping(t, table):
    """Every record once from unequal pipes; half a file is an error on every rank."""
    folder = Path(objects.broadcast(t, tempfile.mkdtemp() if t.rank == 0 else None))
    n_here = 100 * t.rank + 50  # rank 0 is the first to run dry
    numbers = "".join(f"{1000 * t.rank + i}\n" for i in range(n_here)).encode()
    (folder / f"{t.rank}.gz").write_bytes(gzip.compress(numbers))
    whole = gzip.compress(b"".join(b"%d\n" % i for i in range(20_000)))
    (folder / f"bad{t.rank}.gz").write_bytes(whole if t.rank else whole[: len(whole) // 2])
    tree.barrier(t)
    n_steps, found = 0, np.zeros(2, np.int64)
    pipe = Pipe(f"zcat {folder}/$RANK.gz | awk '{{ print $1 }}'", t, batch=64,
                parse=lambda lines: np.array([int(x) for x in lines], np.int64))
    for records, _ in pipe:  # the last steps of rank 0 have no records
        n_steps += 1
        found += len(records), records.sum()
    found, failed = ring.all_reduce(t, found), 0
    try:
        for _ in Pipe(f"zcat {folder}/bad$RANK.gz | cat", t, batch=512):
            pass
    except RuntimeError as error:
        failed = 1
        say(t, str(error).partition("What")[0].replace(str(folder), "..."))
    failed = ring.all_reduce(t, np.array([failed]))[0]
    if t.rank == 0:
        shutil.rmtree(folder)
    n = [100 * r + 50 for r in range(t.size)]
    table.row("records from unequal pipes", found[0], sum(n), "exact")
    table.row("their sum", found[1], sum(1000 * r * k + k * (k - 1) // 2
                                         for r, k in enumerate(n)), "exact")
    table.row("steps of every rank", n_steps, -(-max(n) // 64), "exact")
    table.row("ranks that hear of the broken pipe", failed, t.size, "exact")


def main(t, args):
    table = Table(t)
    prefetching(t, args, table)
    samples = paragraphs()
    sizes, ways = padding(t, table, samples, args.batch)
    training(t, args, table, samples)
    piping(t, table)
    picture(t, draw, args.load, args.step, sizes, ways, args.batch)
    return table


OPTIONS = {
    "load": (30.0, "ms that loading a batch takes"),
    "step": (10.0, "ms of a training step"),
    "batch": (32, "texts of a batch"),
    "rows": (4, "packed rows of a rank's batch"),
    "steps": (12, "training steps"),
    "width": (32, "width of the GPT, a multiple of 4"),
}


def draw(plt, load_ms, step_ms, sizes, ways, batch):
    """Left: loading and training, one worker and enough. Right: padding in grey."""
    figure, (left, *right) = plt.subplots(1, 4, figsize=(14, 4), width_ratios=[2.4, 1, 1, 1])
    k, y = workers_for(load_ms, 0.0, step_ms), 0
    for workers in (1, k):
        _, loads, steps = modelled(load_ms, step_ms, workers, 8)
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
