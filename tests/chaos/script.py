"""A run of tests/elastic/runs.py, with the faults that its command line asks for. See chaos.py."""

import ctypes
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

from minidl import elastic, snapshot
from minidl.snapshot import durable
from tests.elastic import runs

STEPS, EVERY = 14, 3
ENDS = "SIGKILL", "SIGSTOP", "truncated snapshot", "flipped snapshot", "segmentation fault"


class Disk:
    """`os` for durable.py, whose k-th write finds the disk full."""

    def __init__(self, k):
        self.left = k

    def __getattr__(self, name):
        return getattr(os, name)

    def write(self, file, data):
        self.left -= 1
        if not self.left:
            raise OSError(28, "No space left on device")
        return os.write(file, data)


def end(how):
    """End this process, or stop it. how: one of ENDS."""
    if how == "segmentation fault":
        ctypes.string_at(0)
    # a run whose snapshot is damaged is killed first
    os.kill(os.getpid(), signal.Signals["SIGKILL" if how.endswith("snapshot") else how])


def damage(folder, how, rng):
    """Cut the newest snapshot short, or flip a bit of it: of its index, or of one of its files."""
    step = snapshot.latest(folder)
    if step is None:
        return
    path = rng.choice(sorted(folder.glob(f"step-{step:08d}*")))
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    if how == "truncated snapshot":
        data = data[:at]
    else:
        data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def main(kind, folder, faults):
    """faults: of each attempt {how, rank, step, after_s, k, seed}, or None."""
    attempt = int(os.environ["MINIDL_ATTEMPT"])
    if strange := {fault["how"] for fault in faults if fault} - {"exception", "full disk", *ENDS}:
        sys.exit(f"script.py does not know the faults {strange}: add them to `end` and ENDS")
    fault = faults[attempt - 1] if attempt <= len(faults) else None
    before = faults[attempt - 2] if 2 <= attempt <= len(faults) + 1 else None
    launched = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", 0)))
    if before and before["how"].endswith("snapshot") and launched == 0:
        damage(Path(folder), before["how"], random.Random(before["seed"]))

    def train(t, step, **objects):
        if fault and fault["rank"] == t.rank and fault["step"] == step:
            how = fault["how"]
            if how == "full disk":
                durable.os = Disk(fault["k"])
            elif how == "exception":
                raise RuntimeError("planted")
            else:
                threading.Thread(target=lambda: (time.sleep(fault["after_s"]), end(how)),
                                 daemon=True).start()
        runs.step(t, step, **objects)

    model = elastic.run(train, runs.state(kind), STEPS, folder, EVERY)["model"]
    digest = runs.digest(model)
    print(f"weights of rank {model.t.rank}: {digest}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
