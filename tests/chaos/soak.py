"""Training with everything on for half an hour: what a rank holds must not grow.

    minidl run -n 2 tests/chaos/soak.py FOLDER 1800        1800 seconds (make soak)
A round is ten steps of one GPT that lives for all rounds: ZeRO 2, AMP O2 and its scaler, recomputed
segments, dropout, clipping, a schedule, batches from the workers of an input pipeline, a snapshot
written behind the next steps, one step profiled, and the launcher's watch. Then a run of another
kind (runs.KINDS in turn: ZeRO 1 and 3, DGC, DiLoCo, a pipeline ...) is built, trained for five
steps and thrown away: what stays of it would grow, too.

    slope    of the second half's samples, by flat.py: resident MiB a minute, and blocks of Python's
             allocator a round; beside them the open files, which are the same in the end
Test: test_soak.py
"""

import argparse
import gc
import itertools
import os
import sys
import time
from array import array
from pathlib import Path

import numpy as np

import minidl
from minidl import nn, optim
from minidl.comm import objects, world
from minidl.data import Pipeline, text
from minidl.memory.recompute import recompute_sequential
from minidl.nn import functional as F
from minidl.optim.lr_scheduler import CosineAnnealingLR
from minidl.parallel import Zero2
from minidl.precision import amp
from minidl.snapshot import Behind
from tests.data.stream import flat
from tests.elastic import runs

CONTEXT, BATCH, STEPS, WORKERS = 32, 4, 10, 2
FEWEST = 3  # rounds: the second half has two then, and a slope needs two


class GPT(nn.GPT):
    def forward(self, ids):
        x = self.token(ids) + self.position(np.arange(ids.shape[-1]))
        return self.head(self.norm(recompute_sequential(self.blocks, F.dropout(x, 0.1), 2)))


def windows(t):
    """Batches (x, y) of this rank, without end, cut by the pipeline's workers."""
    data = text.stdlib_corpus(1 << 18)

    def window(i):
        at = np.random.default_rng([t.rank, i]).integers(0, len(data) - CONTEXT)
        piece = data[at:at + CONTEXT + 1].astype(np.int64)
        return piece[:-1], piece[1:]

    while True:
        yield from Pipeline(range(1000 * BATCH)).map(window).batch(BATCH).prefetch(2, WORKERS)


def trained(t, folder):
    """(the function that does a round's steps, its parts): the GPT with everything on."""
    minidl.manual_seed(1)
    model = GPT(256, CONTEXT, 2, 2, 32)
    amp.prepare(model, "O2")
    parallel = Zero2(model, t)
    optimizer = optim.AdamW(parallel.shards(), lr=1e-3)
    optim.use_master_weights(optimizer)
    scheduler = CosineAnnealingLR(optimizer, 1000)
    scaler = amp.GradScaler(growth_interval=100)
    behind, batches, count = Behind(t), windows(t), iter(range(1, 10**9))

    def step():
        x, y = next(batches)
        loss = F.cross_entropy(parallel(minidl.tensor(x)).reshape(-1, 256), y.reshape(-1))
        scaler.scale(loss).backward()
        if scaler.step(optimizer, max_norm=1.0):
            scheduler.step()
        scaler.update()
        optimizer.zero_grad()
        parallel.gather()

    def round_of_steps():
        for _ in range(STEPS - 1):
            step()
        with minidl.profile(t):
            step()
        behind.save(folder, next(count), model=parallel, optimizer=optimizer, scaler=scaler,
                    scheduler=scheduler)

    return round_of_steps, behind


def another(t, kind):
    """A run of this kind, from its making to its end."""
    parts = runs.state(kind)(t)
    for number in range(5):
        runs.step(t, number, **parts)
    if hasattr(parts["model"], "close"):
        parts["model"].close()


def soak(t, folder, seconds=None, n_rounds=None, keep=None):
    """[(s, rounds, resident MiB, blocks, open files)]; keep: a list that gets something of each
    round."""
    round_of_steps, behind = trained(t, folder)
    start, samples = time.monotonic(), array("d")  # a list of tuples would grow by 5 blocks a round
    for number in itertools.count():
        go_on = number < n_rounds if n_rounds else time.monotonic() - start < seconds
        if not objects.broadcast(t, go_on):
            break
        round_of_steps()
        another(t, runs.KINDS[number % len(runs.KINDS)])
        behind.wait()
        if keep is not None:
            keep.extend(object() for _ in range(1000))
        gc.collect()
        samples.extend((time.monotonic() - start, number, flat.resident(),
                        sys.getallocatedblocks(), len(os.listdir("/proc/self/fd"))))
    behind.close()
    return np.array(samples).reshape(-1, 5)


def slopes(samples):
    """(MiB a minute, blocks a round) of the second half."""
    mib, blocks = flat.slopes(samples)
    return mib, blocks / 1000


def said(samples):
    if len(samples) < FEWEST:
        return (f"no slope: {len(samples)} rounds were done, and it needs {FEWEST} or more. "
                "Give it more seconds")
    mib, blocks = slopes(samples)
    return f"slope of the second half: {mib:+.3f} MiB a minute, {blocks:+.1f} blocks a round"


def main(folder, seconds):
    t = world()
    samples = soak(t, Path(folder), seconds)
    for s, n, mib, blocks, files in samples[::max(1, len(samples) // 10)] if t.rank == 0 else ():
        print(f"{s:7.0f} s {n:6.0f} rounds {mib:8.2f} MiB {blocks:10,.0f} blocks "
              f"{files:4.0f} files")
    print(f"rank {t.rank}: {said(samples)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="for the snapshots; none may be there")
    parser.add_argument("seconds", type=float)
    main(**vars(parser.parse_args()))
