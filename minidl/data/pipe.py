"""Records from a program's output: training on data that lie nowhere.

    clicks = data.Pipe("zcat clicks-$RANK.gz | awk '$3 > 0'", t, batch=256, parse=numbers)
    for records, total in clicks:           # total: how many all ranks have in this step
        loss = ...                          # records may be empty while others have some
        model(x, n_samples=len(records))    # DataParallel weights by records

    each rank   sh | sh | -> its records        $RANK and $SIZE say which share is its own
    deal=True   rank 0's -> dealt out           one program (or an open file: a FIFO, sys.stdin),
                                                the next `batch` records to each rank in turn

Lines are records; a thread reads and parses ahead. When does training end? No rank knows of the
others' pipes, so before each step they add up how many records they have (an all-reduce of two
numbers): unequal pipes give every record once, and all ranks stop at the same step.

A program that breaks off looks like one that has ended: `zcat` of half a file gives half of the
lines, then end of file. So the exit status of every program in the pipeline is asked for (pipefail
of the shell), and if one is bad all ranks raise, with what it said. A reader that leaves early,
`zcat f | head`, ends the ones before it with SIGPIPE, status 141: that is no fault. Leaving the
loop early ends the programs.

Never read mpiexec's standard input: MPICH's mpiexec dies of more than 64 KB for a rank that does
not read, Open MPI's hangs. `minidl run --stdin FILE` opens FILE as rank 0's sys.stdin.

Test: tests/data/test_pipe.py   Tutorial: tutorials/26_input.py
"""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable

import numpy as np

from minidl.comm import objects, ring
from minidl.comm.labels import about
from minidl.data.ahead import ahead
from minidl.data.dataset import IterableDataset

CLOSED_EARLY = 128 + signal.SIGPIPE
END_S = 5.0  # for a program to end after SIGTERM


class Pipe(IterableDataset):
    """Yields (parse(lines), total) in each step; every rank iterates, in the same order.
    source:  a command for the shell, or an open binary or text file, which needs deal=True.
    parse:   of a list of lines, bytes without their newlines; the list may be empty.
    prefetch: batches read ahead."""

    def __init__(self, source, t, batch=1, parse: Callable = list, deal=False, prefetch=4):
        if batch < 1:
            raise ValueError(f"rank {t.rank}: batch must be at least 1, got {batch}")
        if not isinstance(source, str) and not deal and t.size > 1:
            raise ValueError(f"rank {t.rank}: an open file belongs to one rank; pass deal=True, "
                             "and rank 0 deals its records out, or a command for each rank")
        self.source, self.t, self.batch, self.parse = source, t, batch, parse
        self.deal, self.prefetch = deal, prefetch

    def __iter__(self):
        t, per_step = self.t, self.batch * (self.t.size if self.deal else 1)
        reads = not self.deal or t.rank == 0
        program = Program(self.source, t) if reads else None
        chunks = iter(()) if program is None else ahead(
            program.chunks(per_step), lambda lines: lines if self.deal else self.parse(lines),
            self.prefetch)
        try:
            while True:
                lines, records, fault = [], None, ""
                try:
                    lines, records = next(chunks, ([], None))
                except Fault as error:
                    fault = str(error)
                with about("how many records there are, and whether a program failed"):
                    total, n_faults = ring.all_reduce(
                        t, np.array([len(lines), bool(fault)])).tolist()
                if n_faults:
                    faults = [f for f in objects.all_gather(t, fault) if f]
                    raise RuntimeError(f"rank {t.rank}: {n_faults} of {t.size} ranks had a "
                                       f"program that failed. {faults[0]}")
                if not total:
                    return
                if self.deal:
                    records = self.parse(self._dealt(lines))
                yield self.parse([]) if records is None else records, total
        finally:
            if reads:
                chunks.close()
                program.close()

    def _dealt(self, lines):
        """This rank's part of rank 0's lines, in messages of bytes."""
        t, b = self.t, self.batch
        parts = [lines[r * b:(r + 1) * b] for r in range(t.size)]
        if t.rank == 0:
            for r in range(1, t.size):
                message = objects.pack(parts[r])
                t.send(np.array([len(message)]), r)
                t.send(message, r)
            return parts[0]
        size = np.empty(1, np.int64)
        t.recv(size, 0)
        message = np.empty(size[0], np.uint8)
        t.recv(message, 0)
        return objects.unpack(message)


class Fault(Exception):
    """A program of the pipeline ended badly."""


class Program:
    """A pipeline of the shell, or a file that is open already."""

    def __init__(self, source, t):
        self.source, self.t, self.process, self.output = source, t, None, source
        if not isinstance(source, str):
            self.output = getattr(source, "buffer", source)  # of text: its bytes
            return
        shell = shutil.which("bash")
        if shell is None:
            raise RuntimeError(f"rank {t.rank}: no bash on the PATH, and without its pipefail a "
                               "program that breaks off looks like one that has ended")
        self.errors = tempfile.TemporaryFile()
        environment = os.environ | {"RANK": str(t.rank), "SIZE": str(t.size)}
        # A process group of its own: ended as a whole. Python ignores SIGPIPE; Popen restores it.
        self.process = subprocess.Popen(
            [shell, "-o", "pipefail", "-c", source], stdin=subprocess.DEVNULL, env=environment,
            stdout=subprocess.PIPE, stderr=self.errors, start_new_session=True)
        self.output = self.process.stdout

    def chunks(self, n):
        """Lists of n lines, the last of fewer; then Fault if a program failed."""
        while lines := [line.rstrip(b"\n") for line in itertools.islice(self.output, n)]:
            yield lines
        if self.process is None:
            return
        status = self.process.wait()
        if status not in (0, CLOSED_EARLY):
            self.errors.seek(0)
            said = self.errors.read().decode(errors="replace").strip().splitlines()[-3:]
            how = (f"was ended by {signal.Signals(-status).name}" if status < 0
                   else f"ended with status {status}")
            raise Fault(f"Rank {self.t.rank}'s `{self.source}` {how} after its last record: "
                        f"{' / '.join(said) or 'it said nothing'}. What it gave before may be a "
                        "part only")

    def close(self):
        """End what still runs."""
        if self.process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                # the thread that reads ahead may have waited for it just now: then it is gone
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, number)
                try:
                    self.process.wait(END_S)
                except subprocess.TimeoutExpired:
                    continue
        self.output.close()
        self.errors.close()
