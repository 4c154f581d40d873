"""Grades work/07_ring.py.   Test: tests/tutorials/test_exercises.py"""

from unittest.mock import patch

import numpy as np

import minidl
from minidl.comm import Deadlock, Ledger, chunks, ring, simulate
from minidl.comm.transport.sim import ALPHA, BETA
from minidl.course.grade import Wrong

SEED = 0  # `minidl check --student NAME` sets another one for each student

# (ranks, elements). In two pairs the chunks are equal. In (5, 3) there are fewer elements than
# ranks.
WORLDS = [(2, 10), (3, 10), (4, 1000), (5, 3), (7, 1000)]


def personal(draw):
    """Returns the worlds, with one more that differs for each student."""
    return {"WORLDS": [*WORLDS, (int(draw.integers(2, 8)), int(draw.integers(1, 1500)))]}


def scatter_marked(module, p, n):
    """Returns for each rank (x, messages sent, bytes sent, names of the library's collectives that
    it called)."""
    def body(t):
        t, x = Ledger(t), _marked(t.rank, n)
        module.reduce_scatter(t, x)
        library = sorted({row.label for row in t.rows} & {"ring.reduce_scatter", *LIBRARY})
        return x / np.arange(1, n + 1), t.messages_sent, t.bytes_sent, library

    return simulate(p, body)


LIBRARY = {f"{file}.{name}" for file in ("ring", "ring_blocks", "tree", "halving_doubling")
           for name in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")}


def _marked(rank, n):
    """Returns 16^rank (1, 2, 3, ...): hexadecimal digit r of a sum tells how many times the sum has
    rank r."""
    return 16.0**rank * np.arange(1, n + 1)


def scatter_random(module, p, n):
    values = _random(p, n)

    def body(t):
        x = values[t.rank].copy()
        module.reduce_scatter(t, x)
        return x

    return simulate(p, body)


def _random(p, n):
    return minidl.Generator(SEED + p).normal(p, n, dtype=np.float64)


def grade_07a(student):
    """reduce_scatter gives rank r the whole sum of chunk r+1, and sends all other chunks once."""
    for p, n in WORLDS:
        for rank, (x, messages, n_bytes, library) in enumerate(student.run(scatter_marked, p, n)):
            _whole_sum(x, rank, p)
            if library:
                raise Wrong(f"rank {rank} of {p}: {library[0]} of the library sent the messages. "
                            "Write its loop yourself, with t.sendrecv")
            _expect_equal("messages", rank, p, messages, p - 1, ": one in each of p-1 steps")
            _expect_equal("bytes", rank, p, n_bytes, 8 * (n - chunks.size(n, p, rank + 1)),
                          ": one chunk in each step, not the whole array")
        total = _random(p, n).sum(0)
        for rank, x in enumerate(student.run(scatter_random, p, n)):
            mine = slice(*chunks.bounds(n, p)[(rank + 1) % p :][:2])
            # The bound is for p roundings of 1e-16.
            if not np.allclose(x[mine], total[mine], rtol=1e-12, atol=1e-12):
                raise Wrong(f"rank {rank} of {p}, random numbers: chunk {(rank + 1) % p} is not "
                            "the sum")
        yield f"{p} ranks, {n} elements: sums, messages, bytes"


def _whole_sum(x, rank, p):
    complete = sum(16.0**r for r in range(p))
    split = chunks.split(x, p)
    own = (rank + 1) % p
    if (split[own] == complete).all():
        return
    elsewhere = [c for c in range(p) if len(split[c]) and (split[c] == complete).all()]
    if elsewhere:
        raise Wrong(f"rank {rank} of {p} should hold the whole sum of chunk {own}, but holds the "
                    f"sum of chunk {elsewhere[0]}. Are both chunk numbers off by "
                    f"{(elsewhere[0] - own) % p}?")
    value = split[own][0]
    if value != int(value) or value < 0:
        raise Wrong(f"rank {rank} of {p}: chunk {own} mixes elements of different places")
    counts = [int(value) // 16**r % 16 for r in range(p)]
    said = ", ".join(f"rank {r}: {c}" for r, c in enumerate(counts))
    raise Wrong(f"rank {rank} of {p}: every rank must be in the sum of chunk {own} once; it "
                f"contains {said}. " + ("Is it added twice?" if max(counts) > 1 else
                                        "Do you add the received chunk, in all p-1 steps?"))


def _expect_equal(what, rank, p, got, wanted, hint=""):
    if got != wanted:
        raise Wrong(f"rank {rank} of {p} sent {got:,} {what}; the formula says {wanted:,}{hint}")


def shifted(module, p, n):
    """Returns for each rank (received array, messages, bytes, seconds). If there is a deadlock,
    returns the text of its error."""
    def body(t):
        ledger, into = Ledger(t), np.full(n, -1, np.float32)
        module.shift(_Blocking(ledger), np.full(n, t.rank, np.float32), into)
        return into, ledger.messages_sent, ledger.bytes_sent, t.time()

    try:
        # The simulator then buffers only messages of up to 4 KiB, as some MPI libraries do.
        return simulate(p, body, rendezvous_bytes=4096)
    except Deadlock as error:
        return str(error)


def grade_07b(student):
    """shift passes arrays of any size to the right, without deadlock, in three message times."""
    for p in (2, 3, 4, 5, 8):
        for n in (128, 1001, 100_000):
            results = student.run(shifted, p, n)
            if isinstance(results, str):
                raise Wrong(f"{p} ranks, {n:,} floats: {results}\nAll ranks wait in a circle. "
                            "Some rank must receive while its left neighbour sends.")
            allowed = 3 * (ALPHA + 4 * n * BETA)
            for rank, (into, messages, n_bytes, seconds) in enumerate(results):
                if (into != (rank - 1) % p).any():
                    raise Wrong(f"rank {rank} of {p} received the array of rank {into[0]:.0f}, "
                                f"wanted the array of rank {(rank - 1) % p}, its left neighbour")
                _expect_equal("messages", rank, p, messages, 1)
                _expect_equal("bytes", rank, p, n_bytes, 4 * n)
                if seconds > 1.01 * allowed:
                    raise Wrong(f"{p} ranks, {n:,} floats: no deadlock, but the messages go one "
                                f"after the other: rank {rank} was ready after "
                                f"{seconds * 1e6:.0f} modelled microseconds, "
                                f"{seconds / allowed * 3:.1f} message times. Three message "
                                "times are enough, for any p.")
        yield f"{p} ranks, 128, 1,001 and 100,000 floats: no deadlock, ledger, time"


class _Blocking:
    """A transport that has only send and recv."""

    def __init__(self, t):
        self.rank, self.size, self.send, self.recv = t.rank, t.size, t.send, t.recv

    def __getattr__(self, name):
        raise Wrong(f"shift may use only t.send and t.recv, not t.{name}")


GRADIENTS = [  # (ranks, shapes)
    (1, [(3,)]),
    (2, [(3,), (2, 5)]),
    (3, [(4, 7), (), (5,)]),
    (5, [(1, 1), (11,), (3, 2, 2)]),
]


def _gradients(p, shapes, dtype):
    return [minidl.Generator(SEED + p, stream=i).normal(p, *shape, dtype=np.dtype(dtype))
            for i, shape in enumerate(shapes)]


def averaged(module, p, shapes, dtype):
    """Returns for each rank (gradients, messages sent, bytes sent)."""
    gradients = _gradients(p, shapes, dtype)

    def body(t):
        ledger, parameters = Ledger(t), []
        for g in gradients:
            parameter = minidl.Tensor(np.zeros(g.shape[1:], g.dtype), requires_grad=True)
            parameter.grad = np.array(g[t.rank])
            parameters.append(parameter)
        module.average_gradients(ledger, parameters)
        return [q.grad.array for q in parameters], ledger.messages_sent, ledger.bytes_sent

    with patch.object(module, "all_reduce", ring.all_reduce):  # 07c can be right before 07a is
        return simulate(p, body)


def grade_07c(student):
    """average_gradients gives every gradient its mean over the ranks, with one all-reduce."""
    for p, shapes in GRADIENTS:
        for dtype, width in (("float64", 8), ("float32", 4)):
            gradients = _gradients(p, shapes, dtype)
            n = sum(g[0].size for g in gradients)
            results = student.run(averaged, p, shapes, dtype)
            for rank, (means, messages, n_bytes) in enumerate(results):
                for i, (got, g) in enumerate(zip(means, gradients, strict=True)):
                    _is_mean(got, g, rank, p, i)
                _expect_equal("messages", rank, p, messages, 2 * (p - 1),
                              ": one all-reduce for all gradients together")
                wanted = ring.bytes_sent(n, width, p, rank)
                wide = f". Gradients of {dtype} were sent as another type" if n_bytes in (
                    2 * wanted, wanted // 2) else ""
                _expect_equal("bytes", rank, p, n_bytes, wanted, wide)
        yield f"{p} ranks, gradients of shape {', '.join(map(str, shapes))}: means, ledger"


def _is_mean(got, g, rank, p, i):
    mean = g.mean(0, dtype=np.float64)
    if got is None or got.shape != mean.shape:
        raise Wrong(f"rank {rank} of {p}: gradient {i} should have shape {mean.shape}, has "
                    f"{getattr(got, 'shape', None)}")
    bound = 1e-12 if g.dtype == np.float64 else 1e-6  # a few roundings
    if np.allclose(got, mean, rtol=bound, atol=bound):
        return
    if np.allclose(got, g.sum(0)):
        raise Wrong(f"rank {rank} of {p}: gradient {i} is the sum over the ranks. Return the mean, "
                    "because a step along the sum grows with p")
    if np.array_equal(got, g[rank]):
        raise Wrong(f"rank {rank} of {p}: gradient {i} is still this rank's own. Did you copy the "
                    "result back to p.grad?")
    if not got.any():
        raise Wrong(f"rank {rank} of {p}: gradient {i} is zero")
    if np.allclose(got * (np.vdot(got, g.sum(0)) / np.vdot(got, got)), g.sum(0), rtol=1e-5):
        by = np.vdot(got, g.sum(0)) / np.vdot(got, got)
        raise Wrong(f"rank {rank} of {p}: gradient {i} is the sum over the ranks divided by "
                    f"{by:.3g}. For the mean, divide by the number of ranks, {p}")
    raise Wrong(f"rank {rank} of {p}: gradient {i} is not the mean of all ranks' gradients. Does "
                "every piece of the flat array go back to its own parameter?")


# {exercise: {name of the mistake: (the code of the region, words that its message must have)}}
WRONG = {
    "07a": {
        "off by one chunk": (
            {"chunk[(t.rank - s - 1) % p]": "chunk[(t.rank - s) % p]",
             "chunk[(t.rank - s) % p], right": "chunk[(t.rank - s + 1) % p], right"},
            "holds the sum of chunk",
        ),
        "overwrites instead of adding": (
            {"    received = ": "    mine[...] = ", "    mine += received\n": ""},
            "the received chunk, in all p-1 steps",
        ),
        "one step too few": (
            {"range(p - 1)": "range(p - 2)"},
            "the received chunk, in all p-1 steps",
        ),
        "one step too many": (
            {"range(p - 1)": "range(p)"},
            "sent 2 messages; the formula says 1",
        ),
        "sends to the left": (
            {"% p], right": "% p], left"},
            "deadlock",
        ),
        "scratch of the wrong size": (
            {"scratch[: len(mine)], left)": "scratch, left)[: len(mine)]"},
            "expected",
        ),
        "sends everything": (
            """
total = x.copy()
parcel = x.copy()
for s in range(p - 1):
    parcel = t.sendrecv(parcel, right, np.empty_like(x), left)
    total += parcel
x[:] = total
""",
            "bytes; the formula says",
        ),
    },
    "07b": {
        "every rank sends first": (
            """
t.send(out, right)
t.recv(into, left)
""",
            "wait-for cycle: rank 0 -> rank 1 -> rank 0",
        ),
        "every rank receives first": (
            """
t.recv(into, left)
t.send(out, right)
""",
            "deadlock",
        ),
        "only rank 0 sends first": (
            """
if t.rank == 0:
    t.send(out, right)
    t.recv(into, left)
else:
    t.recv(into, left)
    t.send(out, right)
""",
            "one after the other",
        ),
        "the lower half sends first": (
            """
if t.rank < t.size // 2:
    t.send(out, right)
    t.recv(into, left)
else:
    t.recv(into, left)
    t.send(out, right)
""",
            "one after the other",
        ),
        "receives from the right": (
            """
if t.rank % 2 == 0:
    t.send(out, left)
    t.recv(into, right)
else:
    t.recv(into, right)
    t.send(out, left)
""",
            "its left neighbour",
        ),
        "uses sendrecv": (
            """
t.sendrecv(out, right, into, left)
""",
            "only t.send and t.recv, not t.sendrecv",
        ),
    },
    "07c": {
        "forgets to divide": (
            {"flat /= t.size\n": ""},
            "Return the mean",
        ),
        "does not write back": (
            {"    grad[...] = flat[start : start + grad.size].reshape(grad.shape)\n": ""},
            "still this rank's own",
        ),
        "zero gradients": (
            {"[p.grad.array.reshape(-1) for p": "[np.zeros(p.grad.array.size) for p"},
            "is zero",
        ),
        "does not advance in the flat array": (
            {"    start += grad.size\n": ""},
            "every piece",
        ),
        "an all-reduce for every parameter": (
            """
for p in parameters:
    p.grad = all_reduce(t, p.grad) / t.size
""",
            "messages; the formula says",
        ),
    },
}
