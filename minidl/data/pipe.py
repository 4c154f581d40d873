"""A dataset of the records that a program prints. The data need not be in a file.

    clicks = data.Pipe("zcat clicks-$RANK.gz | awk '$3 > 0'", t, batch=256, parse=numbers)
    for records, total in clicks:           # total: the number of records of all ranks in this step
        loss = ...                          # records may be empty while other ranks have some
        model(x, n_samples=len(records))    # DataParallel weights a rank by its number of records

    each rank   sh | sh | -> its records        $RANK and $SIZE tell the program its share
    deal=True   sh | sh | on rank 0 only        one program, or an open file such as sys.stdin or a
                -> records of all ranks         FIFO. Each rank in turn gets `batch` records

A record is a line. A thread reads and parses ahead. A rank does not know when the pipes of other
ranks end. So before each step the ranks add up how many records they have, by an all-reduce of two
numbers. The ranks use every record once, even if pipes are unequal, and all stop at the same step.

A program that fails in the middle looks like a program that has ended normally. For example, `zcat`
of half a file writes half of the lines and then ends. So Pipe checks the exit status of every
program in the pipeline (the shell's pipefail). If a program failed, all ranks raise RuntimeError
with the program's last error lines. In `zcat f | head`, `head` ends early, and so `zcat` ends by
SIGPIPE with status 141. Pipe does not count this as a failure. If you leave the loop early, the
programs are ended.

Do not use mpiexec's standard input. If it has data that no rank reads, MPICH's mpiexec dies after
64 KB, and Open MPI's mpiexec hangs. `minidl run --stdin FILE` opens FILE as rank 0's sys.stdin.

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
from minidl.data.dataset import IterableDataset
from minidl.data.prefetch import prefetch

CLOSED_EARLY = 128 + signal.SIGPIPE
END_S = 5.0  # seconds in which a program must end after SIGTERM


class Pipe(IterableDataset):
    """Yields (records, total) in each step. `records` are parse(lines) of this rank. `total` is the
    number of records of all ranks. All ranks must iterate, because a step is a collective.

    source:  a command for the shell, or an open binary or text file. With several ranks a file
             needs deal=True.
    t:       the transport.
    batch:   the largest number of records that a rank gets in a step.
    parse:   a function from a list of lines to records. A line is a bytes object without its
             newline. The list may be empty.
    deal:    if True, only rank 0 reads, and it sends each rank a part of the records.
    prefetch: how many batches are read ahead.
    Raises RuntimeError on all ranks if a program of one rank failed."""

    def __init__(self, source, t, batch=1, parse: Callable = list, deal=False, prefetch=4):
        if batch < 1:
            raise ValueError(f"rank {t.rank}: batch must be at least 1, got {batch}")
        if not isinstance(source, str) and not deal and t.size > 1:
            raise ValueError(f"rank {t.rank}: got an open file, but only one rank can read it. "
                             "Pass deal=True. Then rank 0 reads the file, and sends each rank its "
                             "records. Or pass a shell command as the source. Then each rank runs "
                             "the command and reads its output")
        self.source, self.t, self.batch, self.parse = source, t, batch, parse
        self.deal, self.prefetch = deal, prefetch

    def __iter__(self):
        t, per_step = self.t, self.batch * (self.t.size if self.deal else 1)
        reads = not self.deal or t.rank == 0
        program = Program(self.source, t) if reads else None
        chunks = iter(()) if program is None else prefetch(
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
                    raise RuntimeError(f"rank {t.rank}: on {n_faults} of {t.size} ranks a "
                                       f"program failed. {faults[0]}")
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
        """Sends each rank its part of rank 0's lines. Returns this rank's part."""
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
    """Raised if a program of the shell pipeline failed."""


class Program:
    """A running shell pipeline, or a file that is already open."""

    def __init__(self, source, t):
        self.source, self.t, self.process, self.output = source, t, None, source
        if not isinstance(source, str):
            self.output = getattr(source, "buffer", source)  # `buffer` has the bytes of a text file
            return
        shell = shutil.which("bash")
        if shell is None:
            raise RuntimeError(f"rank {t.rank}: no bash on the PATH. Install bash. Its option "
                               "pipefail shows that a program in the middle of a pipe has failed")
        self.errors = tempfile.TemporaryFile()
        environment = os.environ | {"RANK": str(t.rank), "SIZE": str(t.size)}
        # The programs get a process group of their own, so that close() can end all of them at
        # once. Python ignores SIGPIPE, but Popen restores this signal for the programs.
        self.process = subprocess.Popen(
            [shell, "-o", "pipefail", "-c", source], stdin=subprocess.DEVNULL, env=environment,
            stdout=subprocess.PIPE, stderr=self.errors, start_new_session=True)
        self.output = self.process.stdout

    def chunks(self, n):
        """Yields lists of n lines. The last list may be shorter. Then raises Fault if a program
        failed."""
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
                        f"{' / '.join(said) or 'it printed no error'}. Its records may be "
                        "incomplete")

    def close(self):
        """Ends the programs that still run."""
        if self.process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                # the process may have ended just now, while the other thread waited for it
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, number)
                try:
                    self.process.wait(END_S)
                except subprocess.TimeoutExpired:
                    continue
        self.output.close()
        self.errors.close()
