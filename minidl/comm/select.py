r"""Chooses the fastest all-reduce by formulas and measured times. All ranks agree on the choice.

    figures = select.measure(t)              takes about a second; all ranks get rank 0's figures
    figures = select.stored(t)               the figures that `minidl doctor --links` stored
    print(select.explain(t.size, figures))   the choice for each size, with the modelled times

    all_reduce = functools.partial(select.all_reduce, figures=figures)
    DataParallel(model, t, all_reduce=all_reduce)

           time |        \        / ring, halving and doubling: 2(n-1)/n K beta
                |  doubling: few  /
                |  steps    \____/___ shared memory, if the ranks have it
                +--------------------- size

Figures are measured times, such as the seconds per byte of a message. All ranks use rank 0's
figures and arrays of the same size. So all ranks choose the same algorithm without a message. The
formulas of cost.py ignore two things: caches, and ranks that share a core.
benchmarks/bench_all_reduce.py shows how large the error is.

Test: tests/comm/test_select.py   Used by: doctor_links.py (`minidl doctor --links`)
"""

from __future__ import annotations

import functools
import json
import math
import os
import platform
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from minidl.comm import cost, double_tree, halving_doubling, objects, ring, shared_memory, tree
from minidl.comm.collective import collective
from minidl.comm.labels import label_of
from minidl.comm.transport.window import NoSharedMemory
from minidl.own_files import is_ours, write_whole

if TYPE_CHECKING:
    from minidl.comm.transport.protocol import Transport
    from minidl.hints import Op, SameArray

SIZES = tuple(4**k for k in range(5, 15))  # 1 KiB to 256 MiB
# The bytes of the two arrays that `measure` reduces. With SMALL the time is only latency. With
# LARGE the latency is a very small part of the time.
SMALL, LARGE = 8, 1 << 22

# Figures in a file are valid if a message takes 1 ns to 10 s, and a byte at most 1 ms.
TINY, MOST_S, MOST_S_PER_BYTE = 1e-9, 10, 1e-3
MOST_BYTES = 1 << 16  # at most this many bytes are read from a file


class Figures(NamedTuple):
    """Times in seconds, measured while every rank does the same work.

    alpha           seconds per message
    beta            seconds per byte of a message
    gamma           seconds per byte of a sum
    signal          seconds from a signal in a shared window until a waiting rank sees it
    read            seconds per byte that a rank reads in a peer's piece of the window. The time of
                    the copy into the window is included. signal and read are None if the ranks
                    share no memory
    copy            seconds per byte that is copied from memory to memory, for arrays larger than
                    the caches"""

    alpha: float
    beta: float
    gamma: float
    signal: float | None
    read: float | None
    copy: float


# The other all-reduces of this folder, each with the reason why it is not a candidate.
NOT_CANDIDATES = {
    "tree.all_reduce": "doubling_all_reduce has fewer steps, with the same bytes in each",
    "ring_blocks.all_reduce": "it has the bytes and the time of the ring; its blocks are for ZeRO",
    "hierarchical.all_reduce": "it needs the nodes, and two links; Figures have one link",
    "hierarchical.leader_all_reduce": "the same reason as for hierarchical.all_reduce",
    "compressed.all_reduce": "its result differs: the numbers are rounded before each message",
    "select.all_reduce": "it makes the choice",
}


def candidates(n, n_bytes, figures):
    """Returns a dict {all-reduce: its modelled seconds}. The fastest all-reduce comes first. The
    dict has every all-reduce that can run here. n: the number of ranks. n_bytes: the bytes of the
    array on one rank."""
    f = figures
    link = f.alpha, f.beta, f.gamma
    pieces = double_tree.segments(n_bytes)
    times = {
        ring.all_reduce: cost.ring_all_reduce(n, n_bytes, *link),
        halving_doubling.all_reduce: cost.halving_doubling_all_reduce(n, n_bytes, *link),
        halving_doubling.doubling_all_reduce: cost.doubling_all_reduce(n, n_bytes, *link),
        double_tree.all_reduce: cost.double_tree_all_reduce(n, n_bytes, *link, segments=pieces)}
    if f.signal is not None:
        segments = shared_memory.segments(n, n_bytes)
        times[shared_memory.all_reduce] = cost.shared_memory_all_reduce(
            n, n_bytes, f.signal, f.read, f.gamma, segments)
    return dict(sorted(((fn, c.time_s) for fn, c in times.items()), key=lambda item: item[1]))


@functools.cache
def choose(n, n_bytes, figures):
    """Returns the all-reduce with the shortest modelled time, for n ranks and an array of n_bytes
    on each rank."""
    return next(iter(candidates(n, n_bytes, figures)))


@collective
def all_reduce(t: Transport, x: SameArray, op: Op = np.add, *, figures: Figures) -> SameArray:
    """Combines all ranks' x element by element with op, by the fastest algorithm for x.nbytes.
    Returns the result on every rank. Works in place if x is contiguous, as `ring.all_reduce` does.

    figures: the result of `measure` or `stored`. It must be the same on all ranks."""
    chosen = choose(t.size, x.nbytes, figures)
    return chosen.__wrapped__(t, x, op)  # the messages already have the label of this call


def explain(n, figures, sizes=SIZES):
    """Returns a text with the figures, and with a table. The table shows for each size in bytes the
    fastest all-reduce on n ranks."""
    lines = [f"{n} ranks: {describe(figures)}", f"{'bytes':>12}  all-reduce"]
    for n_bytes in sizes:
        times = candidates(n, n_bytes, figures)
        ways = [f"{label_of(fn)} {1e6 * time_s:,.0f} us" for fn, time_s in times.items()]
        lines.append(f"{n_bytes:>12,}  {ways[0]:40} then {', '.join(ways[1:3])}")
    return "\n".join(lines) + "\nmodelled times, by cost.py"


def describe(figures):
    """Returns the figures as one line of text."""
    f = figures
    shared = "no shared memory"
    if f.signal is not None:
        shared = f"window {1e6 * f.signal:.1f} us, {_rate(f.read)}"
    return (
        f"message {1e6 * f.alpha:.1f} us, {_rate(f.beta)}; sum {_rate(f.gamma)}; {shared}; copy "
        f"{_rate(f.copy)}")


def _rate(seconds_per_byte):
    return f"{1e-9 / seconds_per_byte:.2f} GB/s" if seconds_per_byte else "free"


# -- measuring the figures


def measure(t, rounds=20):
    """Measures the Figures. Returns the Figures of rank 0 on all ranks. All ranks must call this
    function.

    The function measures the time of all-reduces of 8 bytes and of 4 MiB, and solves the formulas
    for alpha, beta, ... So alpha includes the time that Python takes for a step. The shortest time
    of all rounds is used, because other programs can only make a round slower."""
    n = t.size
    x, few = np.zeros(LARGE // 4, np.float32), np.zeros(SMALL // 4, np.float32)
    # `part` has 256 KiB, which fit in a cache. `big` has two arrays of 32 MiB.
    part, big = x[: 1 << 16], np.ones((2, 1 << 23), np.float32)
    works = {"sum": (lambda: np.add(part, part, out=part), 20),
             "copy": (lambda: np.copyto(big[0], big[1]), 1),
             "few": (lambda: ring.all_reduce(t, few), 10),
             "large": (lambda: ring.all_reduce(t, x), 2)}
    shares_memory = n > 1 and _shares_memory(t)
    if shares_memory:
        works["few shared"] = (lambda: shared_memory.all_reduce(t, few), 10)
        works["large shared"] = (lambda: shared_memory.all_reduce(t, x), 2)
    least = dict.fromkeys(works, math.inf)
    for _ in range(rounds):
        for key, (work, repeats) in works.items():
            tree.barrier(t)
            start = t.time()
            for _ in range(repeats):
                work()
            least[key] = min(least[key], (t.time() - start) / repeats)
    gamma, copy = least["sum"] / part.nbytes, least["copy"] / big[0].nbytes
    alpha = beta = 0.0
    signal = read = None
    moved = (n - 1) / n * LARGE  # bytes that a rank sends in each half of a ring all-reduce
    if n > 1:
        alpha = least["few"] / (2 * (n - 1))
        beta = (least["large"] - least["few"] - moved * gamma) / (2 * moved)
    if shares_memory:
        signal = least["few shared"]
        signals = (shared_memory.segments(n, LARGE) + 1) * signal
        read = (least["large shared"] - signals - moved * gamma) / (2 * moved)
        read = max(0.0, read)  # read is negative if noise made the sum slower than the all-reduce
    # All ranks get the same figures, because they must choose the same all-reduce.
    return objects.broadcast(t, Figures(alpha, max(0.0, beta), gamma, signal, read, copy))


def _shares_memory(t):
    try:
        shared_memory.all_reduce(t, np.zeros(1))  # makes the window, or raises NoSharedMemory
    except NoSharedMemory:
        return False
    return True


# -- keeping figures in a file


def file_of(t):
    """Returns the Path of the file that keeps the figures. Its name contains the host, the MPI and
    the number of ranks of t."""
    return file_in("links", f"{platform.node()}-{t.library}-{t.size}")


def file_in(folder, words):
    """Returns the Path <cache>/<folder>/<words>.json. In `words`, characters that are unusual in
    file names are replaced by "-".

    The cache is a folder. It is $MINIDL_CACHE if this variable is set. Otherwise it is
    $XDG_CACHE_HOME/minidl if XDG_CACHE_HOME is set. If neither is set, it is ~/.cache/minidl."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    cache = os.environ.get("MINIDL_CACHE") or os.path.join(base, "minidl")
    return Path(cache, folder, re.sub(r"[^\w.-]", "-", words) + ".json")


def keep(path, figures):
    """Writes the dict `figures` to the file `path`. Returns a text that tells where the figures
    are, or why they could not be stored."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(figures, indent=1) + "\n")
    except OSError as error:
        return (f"not stored: {error.strerror}: {path.parent}. Set MINIDL_CACHE to a folder that "
                "you may write to")
    return f"stored in {path}"


def kept(path, are_good, doctor):
    """Returns the dict that `keep` wrote to the file `path`. Returns None if there is no file.

    Also returns None, and warns, if the file is damaged, if are_good(dict) is False, or if another
    user may have written the file. doctor: the option of `minidl doctor` that writes the file. The
    warning names this option."""
    try:
        if not path.exists():
            return None
        if path.is_file() and is_ours(path):
            with open(path, encoding="utf-8") as f:
                found = json.loads(f.read(MOST_BYTES))
            if are_good(found):
                return found
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    warnings.warn(f"{path} is not used: it is damaged, or another user may have written it. "
                  f"`minidl doctor {doctor}` measures again",
                  RuntimeWarning, stacklevel=3)
    return None


def is_number(x, least, most):
    """Returns True if x is an int or a float, and least <= x <= most. Returns False for NaN."""
    return type(x) in (int, float) and least <= x <= most


def _are_good(found, n):
    """Returns True if the dict `found` has possible values for the Figures of n ranks. With wrong
    figures, every later run chooses the wrong algorithm."""
    f = Figures(**found)
    has_window = f.signal is not None
    per_byte = [f.gamma, f.copy, *([f.read] if has_window else [])]
    return ((f.read is None) != has_window
            and is_number(f.alpha, TINY if n > 1 else 0, MOST_S)
            and is_number(f.beta, 0, MOST_S_PER_BYTE)
            and (not has_window or is_number(f.signal, TINY, MOST_S))
            and all(is_number(x, 0, MOST_S_PER_BYTE) for x in per_byte)
            and min(f.gamma, f.copy) > 0)


def store(t, figures):
    """Writes the figures to the file `file_of(t)`, on rank 0 only. On rank 0, returns a text that
    tells where the figures are, or why they could not be stored. Returns "" on the other ranks."""
    return keep(file_of(t), figures._asdict()) if t.rank == 0 else ""


def stored(t):
    """Returns the Figures in rank 0's file `file_of(t)`, on all ranks. Returns None if there is no
    file. Also returns None, and warns on rank 0, if the figures in the file cannot be right.

    All ranks must call this function. A program may begin with `select.stored(t) or
    select.measure(t)`."""
    figures = None
    if t.rank == 0:
        found = kept(file_of(t), functools.partial(_are_good, n=t.size), f"--links {t.size}")
        figures = found and Figures(**found)
    return objects.broadcast(t, figures)
