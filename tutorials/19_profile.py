"""19  Profile: measure before you fix.    60 minutes, needs: 07, 08

This training computes the right numbers, but it has three faults. A trace shows all of them.

    mpirun -n 2 python tutorials/19_profile.py    (or: minidl run -n 2 ...)
    python tutorials/19_profile.py --sim 2        picture: out/19_profile.png
                          trace for ui.perfetto.dev: out/19_trace.json, page: out/19_profile.html

**Rows.** A span is a part of a step with a begin and an end: input, forward, backward, optimizer or
collective. Spans may be inside others. Every moment of a step counts once, for the innermost span
around it. A moment outside of all spans counts as Python. So the rows of the printed table add up
to the time of the step.

**Waiting.** In a collective the ranks wait until the last rank has entered. Then the bytes move. To
measure the wait separately from the transfer, the ranks' clocks must agree. Rank 0 sends a message
to each rank, and the rank answers with the time on its clock. Rank 0 sends the message at the time
a, and has the answer at the time b. It assumes that the rank answered in the middle of these times.
The error is at most (b - a) / 2. This is done before and after the run. So rank 0 knows the
difference of each clock from its own clock (the offset), and how fast the difference changes (the
drift).

**Roofline.** A product (m, k) @ (k, n) needs 2 m n k operations. Its backward has two products of
this size. An operator needs at least max(operations / peak, bytes / bandwidth) seconds. `minidl
doctor --peaks` measures the peak, in operations a second, and the bandwidth, in bytes a second.

**Amdahl.** A part takes the share f of a step's time. Without this part, the step still takes at
least 1 - f of its old time.

The faults:

    "synchronisation"   in the loop the ranks exchange a number that is not needed there
    "loader"            in a step one rank has long texts and the other rank has short texts. So one
                        rank computes more, and the other rank waits
    "float64"           one constant is float64, so all later results are float64, too

Papers: Amdahl 1967; Williams, Waterman & Patterson 2009 (roofline); Cristian 1989 (clocks).
Exercise: `minidl exercise 19` writes work/19_profile.py with the marked region empty;
`minidl check 19` grades it.
"""

import time

import numpy as np

import minidl
from minidl import nn, optim
from minidl.comm import objects, ring
from minidl.course.out import write
from minidl.course.tutorial import Table, host, launch, picture, put, say
from minidl.data import text
from minidl.nn import functional as F
from minidl.profile import flops
from minidl.profile import picture as pictures
from minidl.profile import summary

FAULTS = "synchronisation", "loader", "float64"
VOCAB, WIDTH, LAYERS = 256, 64, 3


def find_faults(ranks):
    """Returns the set of those FAULTS that a trace shows.

    ranks[r][i] is step i of rank r, a list of spans. A span is a dict with these keys:
    "kind"    "forward", "backward", "collective" or another part of a step
    "name"    the operator or the collective, for example "linear"
    "s"       the seconds that it took
    "bytes"   the bytes that it moved; for a collective, the bytes that this rank sent
    "dtype"   for example "float32"; None if it is not known"""
    # >>> exercise 19a: three faults in a trace
    # "synchronisation": count the collectives that send from 1 to 64 bytes. This fault is there if,
    # on average, a rank has more than one such collective in a step.
    # "loader": add up the bytes of the forward spans of each rank in a step. Divide the largest sum
    # by the smallest. This fault is there if the mean of this ratio over the steps is above 1.25.
    # "float64": this fault is there if spans with the dtype float64 take over 5 % of the seconds of
    # all forward and backward spans.
    # Do not look for a fault in the seconds of a rank: a rank can be slow for many reasons.
    found, steps = set(), list(zip(*ranks))  # steps[i][r]
    every = [span for rank in ranks for step in rank for span in step]
    small = sum(s["kind"] == "collective" and 1 <= s["bytes"] <= 64 for s in every)
    if small > len(ranks) * len(steps):
        found.add("synchronisation")
    moved = [[sum(s["bytes"] for s in rank if s["kind"] == "forward") for rank in step]
             for step in steps]
    if np.mean([max(step) / min(step) for step in moved]) > 1.25:
        found.add("loader")
    work = [s for s in every if s["kind"] in ("forward", "backward")]
    wide_s = sum(s["s"] for s in work if s["dtype"] == "float64")
    if wide_s > 0.05 * sum(s["s"] for s in work):
        found.add("float64")
    return found
    # <<<


def texts(length=96, n=512):
    """Returns a list of n pieces of Python's standard library, as arrays of bytes.

    Their lengths are from 9 to `length` bytes."""
    data = text.stdlib_corpus(1 << 18)
    rng = np.random.default_rng(0)
    lengths = rng.integers(8, length, n)
    starts = rng.integers(0, len(data) - length, n)
    return [data[at:at + m + 1] for at, m in zip(starts, lengths, strict=True)]


def batches(t, n_steps, n_rows, bucketed):
    """Yields n_steps batches of this rank: (ids, next ids). Both arrays are (n_rows, L).

    L is the length of the longest text of the batch, and shorter texts are padded with zeros.
    bucketed: if True, the texts of a step have about equal lengths on all ranks."""
    lines = texts()
    rng = np.random.default_rng(1)
    n = n_rows * t.size
    if bucketed:
        lines = sorted(lines, key=len)
        starts = rng.integers(0, len(lines) - n, n_steps)
        chosen = [np.arange(at, at + n)[t.rank::t.size] for at in starts]
    else:  # half of the ranks get short texts, half get long texts; they swap after each step
        order = np.argsort([len(line) for line in lines])
        halves = order[:len(order) // 2], order[len(order) // 2:]
        chosen = [rng.choice(halves[(t.rank + i) % 2], n_rows) for i in range(n_steps)]
    for rows in chosen:
        ids = np.zeros((n_rows, max(len(lines[i]) for i in rows)), np.int64)
        for row, i in zip(ids, rows, strict=True):
            row[:len(lines[i])] = lines[i]
        yield ids[:, :-1], ids[:, 1:]


def average(t, weights):
    """Replaces the gradient of every weight by its mean over the ranks."""
    flat = np.concatenate([w.grad.array.reshape(-1) for w in weights])
    ring.all_reduce(t, flat)
    at = 0
    for w in weights:
        w.grad.array[...] = flat[at:at + w.numel()].reshape(w.shape) / t.size
        at += w.numel()


def train(t, args, faults):
    """Trains with these faults. Returns (profile, mean seconds of a step, tokens of each step)."""
    minidl.manual_seed(0)
    token = put(args, nn.Embedding(VOCAB, WIDTH))
    layers = put(args, nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))))
    head = put(args, nn.Linear(WIDTH, VOCAB))
    weights = [p for part in (token, layers, head) for p in part.parameters()]
    optimizer = optim.SGD(weights, lr=0.1)
    scale = np.array([1.0], np.float64 if "float64" in faults else np.float32)

    tokens, ends = [], []
    with minidl.profile(t, synchronize=args.device == "cuda") as p:
        loader = batches(t, args.steps, args.rows, "loader" not in faults)
        for x, y in p.input(loader):
            optimizer.zero_grad()
            h = token(put(args, minidl.Tensor(x))) * put(args, scale)
            for layer in layers:
                w, b = layer.weight.to(h.dtype), layer.bias.to(h.dtype)
                h = F.gelu(F.linear(h, w, b))
                if "synchronisation" in faults:
                    # Counts the ranks on which every number of h is finite.
                    ring.all_reduce(t, np.array([np.isfinite(host(h)).all()], np.float32))
            logits = F.linear(h, head.weight.to(h.dtype), head.bias.to(h.dtype))
            y = put(args, minidl.Tensor(y.ravel()))
            loss = F.cross_entropy(logits.reshape(-1, VOCAB), y)
            loss.backward()
            average(t, weights)
            optimizer.step()
            ends.append(time.perf_counter())
            p.step()  # the profile ends the step at the same moment as the stopwatch
            tokens.append(x.size)
    step_s = (ends[-1] - ends[0]) / (args.steps - 1)
    return p, step_s, tokens


def for_the_exercise(p):
    """Returns the steps of the profile p, in the form of find_faults's argument `ranks`."""
    ranks = []
    for record in p.ranks:
        steps = [(begin, end, []) for begin, end in summary.bounds(record)]
        for kind, name, start, stop, _, detail in record.lanes["main"]:
            span = {"kind": kind, "name": name, "s": stop - start, "bytes": 0, "dtype": None}
            if kind == "collective":
                span["bytes"] = detail[0]
            elif kind in ("forward", "backward"):
                span["bytes"] = flops.n_bytes(kind, detail)
                span["dtype"] = flops.dtype_of(detail)
            for begin, end, spans in steps:
                if begin <= start < end:
                    spans.append(span)
        ranks.append([spans for _, _, spans in steps])
    return ranks


def one_plan(t, args, table, name, faults):
    """Trains with these faults, and adds rows to the table.

    name: the first word of these rows. Returns (profile, seconds of a step)."""
    p, stopwatch, tokens = train(t, args, faults)
    found = None
    if t.rank == 0:
        found = find_faults(for_the_exercise(p))
    found = objects.broadcast(t, found)
    # The faults "synchronisation" and "loader" can be seen only with two ranks or more.
    visible = faults if t.size > 1 else faults & {"float64"}
    table.row(f"{name}: faults found", " ".join(sorted(found)), " ".join(sorted(visible)),
              "exact")

    mine = summary.of([p.record])["ranks"][0]
    rows_s = sum(mine["rows"].values())
    table.row(f"{name}: rows of a step / its time", rows_s / stopwatch, 1.0, "rel<0.02")

    work = 0
    for kind, op, _, _, _, detail in p.record.lanes["main"]:
        if kind in ("forward", "backward"):
            work += flops.operations(op, kind, detail)
    # a_token is the number of operations of forward for one token. Backward has twice this number.
    a_token = 2 * (LAYERS * WIDTH * WIDTH + WIDTH * VOCAB)
    theory = 3 * sum(tokens) * a_token
    table.row(f"{name}: operations of the products", work, theory, "exact")
    return p, stopwatch


def main(t, args):
    table = Table(t)
    plans = {"all three": set(FAULTS), "none": set()}
    for name in FAULTS:
        plans[name] = {name}

    step_s, profiles = {}, {}
    for name, faults in plans.items():
        profiles[name], step_s[name] = one_plan(t, args, table, name, faults)

    p = profiles["all three"]
    say(t, p.report())
    for name in (*FAULTS, "all three"):
        table.row(f"a step with {name} / without", step_s[name] / step_s["none"])
    if t.rank == 0:
        write("19_trace.json", p.trace)
        write("19_profile.html", p.html)
    picture(t, args, draw, p.ranks, p.summary)
    return table


def draw(plt, ranks, figures):
    """Draws the last steps of each rank, and the roofline."""
    return pictures.draw(plt, ranks, figures)


OPTIONS = {"steps": (12, "training steps; the first is not measured"),
           "rows": (24, "number of texts of a rank in a step")}


if __name__ == "__main__":
    launch(main, OPTIONS, ranks=2)
