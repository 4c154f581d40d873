"""Holds the results of the check form: findings, each with a remedy, and the traffic of each array.

    kernel reduce of reduce.cu: 1 error
      reduce.cu:14: data race: thread 3 reads s[19], thread 19 wrote it at line 12, no barrier ...
          -> Put a __syncwarp() or __syncthreads() between the two accesses.
      array                      loads         bytes      stores         bytes   atomics
      x                          1,000         4,000           0             0         0

sentences.py makes the sentences.
Test: tests/cuda/checks/test_check.py, test_check_planted.py
"""

from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

# A report lists the findings in the order of this list. An entry such as "rac" stands for all kinds
# with this text in their name. "" stands for all other kinds.
CAUSES_FIRST = ["rac", "", "double write", "out of bounds", "misaligned", "unwritten",
                "segmentation", "divergent", "deadlock", "endless", "stopped", "result depends",
                "not written"]


@dataclass
class Finding:
    """One error at one place in the code.

    kind:    the name of the kind of error, as in kinds.py.
    warning: True if the kernel may still be correct.
    block, threads: the coordinates of the block, and of one or two threads, if known.
    count:   how many accesses on this line had the error."""

    kind: str
    text: str
    remedy: str
    file: str = ""
    line: int = 0
    warning: bool = False
    block: tuple | None = None
    threads: tuple = ()
    count: int = 1

    @property
    def order(self):
        """Returns a number. Findings with smaller numbers come first in a report, so a cause comes
        before its possible effects."""
        return next((i for i, words in enumerate(CAUSES_FIRST) if words and words in self.kind), 1)

    def __str__(self):
        place = f"{self.file}:{self.line}: " if self.line else ""
        return f"{place}{'warning: ' * self.warning}{self.kind}: {self.text}"


@dataclass
class Traffic:
    """Counts the accesses of one launch to one array, and the bytes of these accesses."""

    loads: int = 0
    load_bytes: int = 0
    stores: int = 0
    store_bytes: int = 0
    atomics: int = 0
    atomic_bytes: int = 0

    def __add__(self, other):
        return Traffic(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass
class Report:
    """The result of one check.

    findings: [Finding], errors and warnings.
    ledger:   {name of an array: Traffic}.
    shared:   {name of a __shared__ variable: Traffic}."""

    kernel: str
    path: Path
    findings: list = field(default_factory=list)
    ledger: dict = field(default_factory=dict)
    shared: dict = field(default_factory=dict)
    profile: Any = None  # profile.Profile, if check() was called with profile=True
    note: str = ""  # the reason why findings have no line, or ""

    @property
    def errors(self):
        return [f for f in self.findings if not f.warning]

    @property
    def warnings(self):
        return [f for f in self.findings if f.warning]

    @property
    def bytes_read(self):
        """Returns the number of bytes that were loaded from all arrays. An atomic operation counts
        as a load and as a store."""
        return sum(t.load_bytes + t.atomic_bytes for t in self.ledger.values())

    @property
    def bytes_written(self):
        return sum(t.store_bytes + t.atomic_bytes for t in self.ledger.values())

    def __str__(self):
        head = f"kernel {self.kernel} of {self.path.name}: {count(len(self.errors), 'error')}"
        if self.warnings:
            head += f", {count(len(self.warnings), 'warning')}"
        lines = [head, f"  {self.note}"] if self.note else [head]
        for f in [*self.errors, *self.warnings]:
            lines += [f"  {f}", f"      -> {f.remedy}"]
        return "\n".join([*lines, *self.table()])

    def table(self):
        """Returns the ledger as lines of text."""
        rows = [*self.ledger.items(), *((f"{n} (shared)", t) for n, t in self.shared.items())]
        lines = [f"  {'array':<20} {'loads':>11} {'bytes':>13} {'stores':>11} {'bytes':>13} "
                 f"{'atomics':>9}"]
        return lines + [f"  {name:<20} {t.loads:>11,} {t.load_bytes:>13,} {t.stores:>11,} "
                        f"{t.store_bytes:>13,} {t.atomics:>9,}" for name, t in rows]

    def add(self, finding):
        """Adds a finding, unless the report already has a finding of the same kind at the same
        line. If the old finding is a warning and the new one is an error, replaces the warning."""
        for i, f in enumerate(self.findings):
            if (f.kind, f.file, f.line) == (finding.kind, finding.file, finding.line):
                if f.warning and not finding.warning:
                    self.findings[i] = finding
                return
        self.findings.append(finding)


def count(n, word, words=None):
    return f"{n:,} {word if n == 1 else words or word + 's'}"
