"""Is loading fast enough for training? Peers: the shortest possible time, grain and PyTorch.

    python benchmarks/bench_input.py [--rounds 3] [--items 30] [--out F.json]

An item is a batch that takes L seconds to load. A step of S seconds follows each item. The step
sleeps, because the CPU waits while a GPU computes. There are four kinds of loading. One waits for a
disk (sleep), one computes outside Python's lock (zlib), and one does both. The last kind holds the
lock (a loop in Python). It is there only for comparison, because more threads cannot speed it up.
L_cpu is the part of L in which the CPU works. In the other part, L_io = L - L_cpu, the CPU waits.
L, L_cpu and S are measured here. The bound is the shortest possible time of a step, by the formula
of minidl/data/prefetch.py:

    max(L_io / k, L_cpu / cores, S) with k workers, max(L, S) with one worker

The columns are (bound / time of a step): 1.00 is perfect. The first nine items are not measured,
because the times are steady only from the tenth item on. grain is left out if it is not installed
(pip install grain).
"""

import argparse
import statistics
import time
import zlib

import numpy as np
from common import bar, device_option, faster, finish, heading, row, take_turns

from minidl.data import Pipeline, lengths
from minidl.data.prefetch import step_time

STEP_S, WAIT_S = 0.010, 0.016
FIRST = 10
PACKED = zlib.compress(np.random.default_rng(0).integers(0, 40, 600_000, np.uint8).tobytes(), 6)


def waits(i):
    time.sleep(WAIT_S)
    return np.full(8, i)


def computes(i):
    zlib.decompress(PACKED)
    zlib.decompress(PACKED)
    return np.full(8, i)


def both(i):
    time.sleep(WAIT_S / 2)
    zlib.decompress(PACKED)
    return np.full(8, i)


def holds_the_lock(i):
    total = 0
    for k in range(250_000):
        total += k & i
    return np.full(8, total)


class Source:
    """The data set that each peer reads: item i is load(i)."""

    def __init__(self, load, n):
        self.load, self.n = load, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if not 0 <= i < self.n:
            raise IndexError(i)
        return self.load(int(i))


def ours(source, workers):
    return iter(Pipeline(source).prefetch(2, workers, say=lambda line: None))


def grains(source, workers):
    import grain

    options = grain.ReadOptions(num_threads=workers, prefetch_buffer_size=workers + 1)
    return iter(grain.MapDataset.source(source).to_iter_dataset(options))


def torchs(source, workers):
    from torch.utils.data import DataLoader

    return iter(DataLoader(source, batch_size=None, num_workers=workers))


def steady(make, load, n_items, workers):
    """Returns a function for common.take_turns. This function loads n_items items, with a step
    after each item. It returns the mean seconds of an item together with its step. make: a function
    that makes the peer's iterator. load: a function that loads an item."""
    def run():
        items = make(Source(load, n_items), workers)
        for k, _ in enumerate(items):
            if k == FIRST:
                start = time.perf_counter()
            time.sleep(STEP_S)
        return (time.perf_counter() - start) / (n_items - FIRST)
    return run


def alone(load, repeats=15):
    """Returns (L, L_cpu): seconds, and CPU seconds, of one load on an idle core."""
    times = []
    for i in range(repeats):
        start, cpu = time.perf_counter(), time.thread_time()
        load(i)
        times.append((time.perf_counter() - start, time.thread_time() - cpu))
    return tuple(statistics.median(column) for column in zip(*times, strict=True))


def slept():
    """A step is sleep(0.010). Returns how many seconds it really takes: a little more than 0.010.
    """
    start = time.perf_counter()
    for _ in range(20):
        time.sleep(STEP_S)
    return (time.perf_counter() - start) / 20


def installed():
    """Returns ({peer: a function that makes its iterator}, [peers that are left out])."""
    peers, left_out = {"minidl": ours}, []
    for name, make, package in (("grain's threads", grains, "grain"),
                                ("PyTorch's workers", torchs, "torch")):
        try:
            __import__(package)
        except ImportError:
            left_out.append(f"{name}: pip install {package}")
        else:
            peers[name] = make
    return peers, left_out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--items", type=int, default=30)
    parser.add_argument("--out")
    device_option(parser, "it loads on the host, and its step only sleeps")
    args = parser.parse_args()
    from minidl.backend import n_cores

    print(heading())
    peers, left_out = installed()
    figures, bars, rows = {}, [], []
    print(f"{'loading':>16} {'workers':>7} {'L ms':>6} {'L_cpu':>6} {'S':>6} {'bound':>6}  "
          + "  ".join(f"{name:>17}" for name in peers))
    for load in (waits, computes, both, holds_the_lock):
        judged = load is not holds_the_lock
        for workers in (1, 2):
            load_s, cpu_s = alone(load)
            step_s = slept()
            bound = step_time(load_s, cpu_s, step_s, workers, 1, n_cores() if judged else 1)
            times = take_turns({name: steady(make, load, args.items, workers)
                                for name, make in peers.items()}, args.rounds, warm_up=0)
            reached = {name: bound / statistics.median(t) for name, t in times.items()}
            name = f"{load.__name__}, {workers}"
            figures[name] = dict(load_s=load_s, cpu_s=cpu_s, step_s=step_s, bound_s=bound,
                                 times_s=times, reached=reached)
            print(f"{load.__name__:>16} {workers:>7} {1e3 * load_s:6.1f} {1e3 * cpu_s:6.1f} "
                  f"{1e3 * step_s:6.1f} {1e3 * bound:6.1f}  "
                  + "  ".join(f"{reached[peer]:17.3f}" for peer in peers))
            if not judged:
                continue
            its = [bar(f"{name} workers: part of the bound", reached["minidl"],
                       {1: 0.95, 2: 0.90}[workers], best=bound / min(times["minidl"]))]
            # sleep() is not exact, so two libraries differ a little even if both reach the bound.
            # A difference of up to 2 % counts as equal.
            its += [faster(f"{name} workers: as fast as {peer}", times[peer], times["minidl"], 0.98)
                    for peer in peers if peer != "minidl"]
            bars += its
            rows.append(row(f"input that {load.__name__}, {workers} workers: part of the bound",
                            "max(L_io/k, L_cpu/cores, S), grain, PyTorch",
                            f"{reached['minidl']:.2f}", its))
    sizes = np.minimum(np.random.default_rng(0).lognormal(5, 1, 25_600).astype(int) + 1, 2000)
    for name, measured, theory in of_lengths(sizes):
        print(f"{name:<40} {measured:6.1%}  formula {theory:6.1%}")
        figures[name] = [measured, theory]
        bars.append(bar(f"{name}: points from the formula", 100 * abs(measured - theory), 1,
                        at_most=True))
        rows.append(row(name, f"formula {theory:.1%}", f"{measured:.1%}", bars[-1:]))
    finish(figures, bars, rows, args.out, left_out)


def of_lengths(sizes):
    """Yields (name, measured waste, waste by the formula). sizes: the lengths of texts. Waste is
    the share of padding in batches of these texts."""
    for pool in (1, 50):
        batches = lengths.pools(sizes, batch_size=32, pool=pool)(0)
        yield (f"waste, sorted pools of {pool} batches", lengths.waste(sizes, batches),
               lengths.expected_waste(sizes, 32, pool))


if __name__ == "__main__":
    main()
