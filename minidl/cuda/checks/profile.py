"""Counts, for each line, the memory requests of a kernel on a GPU: `minidl kernel run --profile`.

    line  access                requests  threads  sectors  best  worst
      12  loads in                   256     32.0      4.0   4.0      4
      15  stores out                 256     32.0     32.0   4.0     32   <- 8.0 x as many as needed
    line  branch                     warps  threads  diverged
       9                                32     32.0         1

A request is one instruction of one warp. A request to global memory moves sectors of 32 bytes. A
request to shared memory takes one or more wavefronts. The number of wavefronts is the number of
words that the busiest bank must deliver.

Three columns are means over the requests: `threads`, `sectors` and `best`. For one request, `best`
is the smallest number of sectors that could move the request's bytes. `worst` is the largest number
of sectors of one request.

kernels/host/profile.cpp counts the requests, with the threads in ascending order. The counts are
exact if all threads of a warp execute a line the same number of times. In an unrolled loop, all
copies of a line count as this one line.
Test: tests/cuda/checks/test_profile.py   Tutorial: tutorials/03_kernel_tour.py
"""

import ctypes
from dataclasses import dataclass, field

from minidl.cuda.checks import occupancy
from minidl.text import Columns, word

MAX_ROWS, MAX_EPOCHS, MAX_PICTURES, COLUMNS = 1024, 48, 6, 64  # as in kernels/host/profile.h
WHAT = ("loads", "stores", "atomics on", "loads", "stores", "atomics on", "branch")
FIRST_SHARED, BRANCH = 3, 6


class Row(ctypes.Structure):  # the same layout as in profile.h
    _fields_ = [("place", ctypes.c_uint), *((n, ctypes.c_int) for n in "what region size".split()),
                *((n, ctypes.c_ulonglong) for n in "requests lanes units best worst".split())]


class Raw(ctypes.Structure):
    _fields_ = [*((n, ctypes.c_int) for n in "n_rows n_epochs n_pictures cut".split()),
                ("rows", Row * MAX_ROWS), ("regions", ctypes.c_int * MAX_PICTURES),
                ("picture", ((ctypes.c_ubyte * COLUMNS) * MAX_EPOCHS) * MAX_PICTURES)]


@dataclass(frozen=True)
class Line:
    """The accesses of one line to one array, or the branches of one line.

    requests: the number of requests (instructions of warps).
    lanes:    the number of threads that take part, added up over all requests.
    units:    for global memory the number of sectors, for shared memory the number of wavefronts,
              for branches the number of branches that diverged.
    best:     the smallest number of units that could move the same bytes.
    worst:    the largest number of units of one request."""

    file: str
    line: int
    what: str
    array: str
    shared: bool
    requests: int
    lanes: int
    units: int
    best: int
    worst: int

    def __add__(self, other):
        sums = {n: getattr(self, n) + getattr(other, n)
                for n in ("requests", "lanes", "units", "best")}
        return Line(*(getattr(self, n) for n in ("file", "line", "what", "array", "shared")),
                    **sums, worst=max(self.worst, other.worst))


@dataclass
class Profile:
    """The counts of one launch.

    accesses:     [Line], the accesses to global and shared memory.
    branches:     [Line], the branches.
    pictures:     {name of a __shared__ array: [a string for each time between two barriers]}, for
                  block 0. Each sign in a string stands for a piece of the array: "." not used, "r"
                  read, "w" written, "b" read and written.
    shared_bytes: the bytes of a block's __shared__ variables.
    cut:          True if a loop was too long to count all its requests."""

    accesses: list = field(default_factory=list)
    branches: list = field(default_factory=list)
    pictures: dict = field(default_factory=dict)
    shared_bytes: int = 0
    cut: bool = False

    def __str__(self):
        return self.text()

    def text(self, tr=str):
        """Returns the tables and the pictures as text. tr: translates a sentence or a word."""
        lines = [*_table(self.accesses, False, tr), *_table(self.accesses, True, tr)]
        if self.branches:
            lines.append(BRANCHES.head(tr))
            lines += [BRANCHES.row(_place(b), "", f"{b.requests:,}", f"{b.lanes / b.requests:.1f}",
                                   f"{b.units:,}") +
                      tr("   <- both ways in one warp") * (b.units > 0) for b in self.branches]
        for name, rows in self.pictures.items():
            lines.append(tr(
                f"  shared memory of block 0: {name}, one column a part of the array, one row the "
                "time to the next barrier (r read, w written, b both)"))
            lines += [f"    {i:>3} |{row}|" for i, row in enumerate(rows)]
        if self.cut:
            lines.append(tr("  (a loop was too long: only its first 32,768 requests are counted)"))
        return "\n".join(lines)


def _place(line):
    return f"{line.file}:{line.line}"


GLOBAL, SHARED = (
    Columns(("line", "<22"), ("access", "<18"), ("requests", ">9"), ("threads", ">8"),
            (unit, ">10"), ("best", ">5"), ("worst", ">6"), start="  ", gap=" ")
    for unit in ("sectors", "wavefronts"))
BRANCHES = Columns(("line", "<22"), ("branch", "<18"), ("warps", ">9"), ("threads", ">8"),
                   ("diverged", ">9"), start="  ", gap=" ")


def _table(accesses, shared, tr):
    rows, columns = [a for a in accesses if a.shared == shared], SHARED if shared else GLOBAL
    lines = [columns.head(tr)] * bool(rows)
    for a in rows:
        times = a.units / a.best if a.best else 1
        what = "shared bank conflicts" if shared else "as many as needed"
        note = tr(f"   <- {times:.1f} x {what}") if times > 1.05 else ""
        lines.append(columns.row(
            _place(a), f"{word(a.what, tr)} {a.array}", f"{a.requests:,}",
            f"{a.lanes / a.requests:.1f}",
            f"{a.units / a.requests:.1f}", f"{a.best / a.requests:.1f}", a.worst) + note)
    return lines


def make(raw, lines, name_of, shared):
    """Returns the Profile for the counts in `raw`, a struct that profile.cpp has filled.

    lines:   {place in the code: (file, line)}.
    name_of: a function that gets the number of a region and returns the name of its array.
    shared:  the kernel's __shared__ variables, [(name, n_bytes)]."""
    found = {}
    for r in raw.rows[: raw.n_rows]:
        if not r.requests:
            continue
        file, line = lines.get(r.place, ("", 0))
        if not line:
            continue
        is_shared = FIRST_SHARED <= r.what < BRANCH
        array = name_of(r.region) if r.what != BRANCH else ""
        row = Line(file, line, WHAT[r.what], array, is_shared, r.requests, r.lanes, r.units,
                   r.best, r.worst)
        key = file, line, r.what == BRANCH, row.what, array
        found[key] = found[key] + row if key in found else row
    ordered = [found[k] for k in sorted(found)]
    pictures = {}
    for k in range(raw.n_pictures):
        rows = ["".join(".rwb"[c] for c in row).rstrip(".") for row in
                (bytes(raw.picture[k][e]) for e in range(raw.n_epochs))]
        width = max(map(len, rows))
        pictures[name_of(raw.regions[k])] = [row.ljust(width, ".") for row in rows]
    return Profile([r for r in ordered if r.what != "branch"],
                   [r for r in ordered if r.what == "branch"], pictures,
                   sum(n for _, n in shared), bool(raw.cut))


def occupancy_line(profile, block, registers, gpu):
    """Returns a sentence that tells how many blocks fit on an SM of the GPU named `gpu`."""
    text = occupancy.sentence(occupancy.occupancy(gpu, block, registers, profile.shared_bytes))
    known = f"{registers} registers" if registers else "registers not known: NVRTC is not installed"
    return f"  {text} ({block} threads, {known}, {profile.shared_bytes:,} bytes shared)"
