"""PyTorch's gloo in processes of its own, and minidl's simulated ranks, on the same numbers.

    python -m tests.peers.gloo_peer RANK SIZE FOLDER     one process of gloo; cases() starts these

`play` makes the calls: of torch.distributed there, and here of its stand-in of c10d_peer.py. Every
collective, with every dtype, from and to each rank, with blocks of unequal sizes and of none. The
numbers are small whole ones: a sum is exact in every order, so all bits must be equal.
What gloo refuses is not mapped.
"""

import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as gloo

from minidl import comm
from minidl.comm.transport.scheduler import Deadlock, RankFailed
from tests.peers.c10d_peer import ALL_REDUCES, Dist

SIZES = (2, 3)
LENGTHS = (1, 2, 3, 7, 1001)
DTYPES = [getattr(torch, name) for name in
          "float64 float32 float16 int64 int32 int8 uint8".split()]
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def numbers(rank, dtype, *shape):
    """Returns numbers of this rank: 0 to 4, so that a product of three is exact in int8, too."""
    made = torch.Generator().manual_seed(7 * rank + len(shape))
    return torch.randint(0, 5, shape, generator=made).to(dtype)


def calls(size):
    """Yields (name, a function of (dist, rank) that returns a list of tensors)."""
    for dtype in DTYPES:
        for n in LENGTHS:
            title = f"{n} {str(dtype).removeprefix('torch.')} on {size}"
            for op in OPS:
                if not (op[0] == "B" and dtype.is_floating_point):
                    yield f"all_reduce {op} {title}", all_reduce(op, dtype, n)
                    for root in range(size):
                        yield f"reduce {op} to {root} {title}", reduce(op, root, dtype, n)
            for root in range(size):
                yield f"broadcast from {root} {title}", broadcast(root, dtype, n)
                yield f"gather to {root} {title}", gather(root, dtype, n, size)
                yield f"scatter from {root} {title}", scatter(root, dtype, n, size)
            yield f"all_gather {title}", all_gather(dtype, n, size)
            yield f"all_to_all equal {title}", all_to_all(dtype, n, size)
            yield f"all_to_all unequal {title}", all_to_all_v(dtype, n, size)
            for step in range(1, size):
                yield f"rotation by {step} {title}", rotation(step, dtype, n, size)


def all_reduce(op, dtype, n):
    def call(dist, rank):
        x = numbers(rank, dtype, n, 2)
        dist.all_reduce(x, getattr(gloo.ReduceOp, op))
        return [x]
    return call


def reduce(op, root, dtype, n):
    def call(dist, rank):
        x = numbers(rank, dtype, n)
        dist.reduce(x, root, getattr(gloo.ReduceOp, op))
        return [x] if rank == root else []
    return call


def broadcast(root, dtype, n):
    def call(dist, rank):
        x = numbers(rank, dtype, 3, n)
        dist.broadcast(x, root)
        return [x]
    return call


def gather(root, dtype, n, size):
    def call(dist, rank):
        found = [torch.zeros(n, 2, dtype=dtype) for _ in range(size)] if rank == root else None
        dist.gather(numbers(rank, dtype, n, 2), found, root)
        return found or []
    return call


def scatter(root, dtype, n, size):
    def call(dist, rank):
        x, out = list(numbers(rank, dtype, size, n)), torch.zeros(n, dtype=dtype)
        dist.scatter(out, x if rank == root else None, root)
        return [out]
    return call


def all_gather(dtype, n, size):
    def call(dist, rank):
        found = [torch.zeros(n, dtype=dtype) for _ in range(size)]
        dist.all_gather(found, numbers(rank, dtype, n))
        return found
    return call


def all_to_all(dtype, n, size):
    def call(dist, rank):
        out = torch.zeros(size * n, dtype=dtype)
        dist.all_to_all_single(out, numbers(rank, dtype, size * n))
        return [out]
    return call


def all_to_all_v(dtype, n, size):
    """Rank r sends n (r + 2 s) % 4 rows to rank s: some are none."""
    def call(dist, rank):
        to = [n * ((rank + 2 * s) % 4) for s in range(size)]
        come = [n * ((s + 2 * rank) % 4) for s in range(size)]
        out = torch.zeros(sum(come), 2, dtype=dtype)
        dist.all_to_all_single(out, numbers(rank, dtype, sum(to), 2), come, to)
        return [out]
    return call


def rotation(step, dtype, n, size):
    def call(dist, rank):
        out = torch.zeros(n, dtype=dtype)
        sent = dist.isend(numbers(rank, dtype, n), (rank + step) % size)
        dist.recv(out, (rank - step) % size)
        sent.wait()
        return [out]
    return call


def play(dist, rank, size, word=""):
    """Returns {name: the list of arrays on this rank, or a text where the call is refused}."""
    found = {}
    for name, call in calls(size):
        if word in name:
            try:
                found[name] = [tensor.numpy() for tensor in call(dist, rank)]
            except (RuntimeError, ValueError, TypeError) as error:
                found[name] = f"{type(error).__name__}: {error}"
    return found


def of_gloo(size, word):
    """Returns what each of `size` processes of gloo has; [the dict of rank 0, ...]."""
    with tempfile.TemporaryDirectory() as folder:
        started = [subprocess.Popen([sys.executable, "-m", "tests.peers.gloo_peer", str(rank),
                                     str(size), folder, word]) for rank in range(size)]
        if any([process.wait() for process in started]):
            raise RuntimeError(f"a process of gloo failed, of {size}")
        return [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(size)]


def of_rank(t, dist, word):
    dist.enter(t)
    return play(dist, t.rank, t.size, word)


def cases(word=""):
    for size in SIZES:
        wanted = of_gloo(size, word)
        for algorithm, f in ALL_REDUCES.items():
            words = word if algorithm == "ring" else "all_reduce"
            try:
                got = comm.simulate(size, of_rank, Dist(size, f), words)
            except (RankFailed, Deadlock) as error:
                yield f"on {size}, {algorithm}", "wrong", f"{error}: {error.__cause__}"
                continue
            for name in got[0]:
                if word in name:
                    yield f"{name}, {algorithm}", *judged([x[name] for x in wanted],
                                                          [x[name] for x in got])


def judged(wanted, got):
    for rank, (want, mine) in enumerate(zip(wanted, got, strict=True)):
        if isinstance(want, str):
            return "not mapped", f"gloo refuses: {want.splitlines()[0][:80]}"
        if isinstance(mine, str):
            return "wrong", f"rank {rank}: minidl refuses: {mine}"
        for x, y in zip(want, mine, strict=True):
            if x.dtype != y.dtype or x.shape != y.shape or x.tobytes() != y.tobytes():
                return "wrong", f"rank {rank}: {y.ravel()[:5]}, gloo has {x.ravel()[:5]}"
    return "passed", ""


def process(rank, size, folder, word=""):
    gloo.init_process_group("gloo", init_method=f"file://{folder}/store", rank=int(rank),
                            world_size=int(size))
    found = play(gloo, int(rank), int(size), word)
    (Path(folder) / rank).write_bytes(pickle.dumps(found))
    gloo.destroy_process_group()


if __name__ == "__main__":
    process(*sys.argv[1:])
