"""Makes sentences from the numbers that the check form recorded. Each sentence has a remedy.

    RACE, x 19, thread 3 at 0x4a2, thread 19 at 0x481
    -> reduce.cu:14: data race: thread 3 reads s[19], thread 19 wrote it at line 12, no barrier ...

Names and remedies: kinds.py.   Test: tests/cuda/checks/test_check_planted.py
"""

import ctypes
import math
import re
from dataclasses import dataclass
from pathlib import Path

from minidl.cuda.checks.kinds import (
    ATOMIC, BAD_INDEX, BEFORE, BLOCK_RACE, BLOCKS_WAIT, COMPILER, CONST_WRITE, DIVISION,
    DOUBLE_WRITE, ENDLESS, ENGINE, FAULT_REMEDIES, FAULTED, FAULTS, FENCE, IN_DYNAMIC, IN_SHARED,
    KINDS, LOCAL_ENDED, LOCAL_OUTSIDE, LOCAL_UNWRITTEN, MISALIGNED, NEGATIVE, NOT_SHARED, NOW, NULL,
    OTHER_STACK, OUT_OF_BOUNDS, PAST_OBJECT, RACE, SHIFT, STACK_FULL, STALE, TOO_MUCH_SHARED,
    UNINITIALISED, UNWRITTEN,
)
from minidl.cuda.checks.places import array_on, earlier_uses, enclosing_loops, large_locals
from minidl.cuda.checks.report import Finding, count
from minidl.cuda.host.arena import GUARD, PAGE


@dataclass(frozen=True)
class Shared:
    """A __shared__ or __device__ variable.

    element: the bytes of one element. rows, columns: the variable's last two extents. An extent
    that the variable does not have is 0. If rows is -1, the variable is dynamic shared memory."""

    name: str
    element: int
    rows: int
    columns: int
    n_bytes: int
    is_shared: bool = True

    def at(self, offset):
        """Returns the name of the element at `offset` bytes, such as 'tile[3][32]'."""
        index = offset // self.element
        if self.columns == index == 0 <= self.rows:  # the variable is not an array
            return self.name
        if self.rows < 0 or self.columns == 0 or not 0 <= offset < self.n_bytes:
            return f"{self.name}[{index}]"
        row, column = divmod(index, self.columns)
        if self.rows == 0:
            return f"{self.name}[{column}]"
        page, row = divmod(row, self.rows)
        has_pages = self.n_bytes > self.element * self.rows * self.columns
        return f"{self.name}{f'[{page}]' * has_pages}[{row}][{column}]"


class Words:
    """Makes sentences from the numbers that check.cpp recorded in one run.

    grid, block: (x, y, z).
    regions:     the regions of the Arena. shared: [Shared], the kernel's variables.
    lines:       {place in the code: (file, line)}.
    path:        the path of the kernel's file.
    calls:       the places of the calls on the stack, if the stack overflowed."""

    def __init__(self, grid, block, regions, shared, lines, path, calls=()):
        self.grid, self.block, self.lines, self.path = grid, block, lines, path
        self.calls = [lines[c][1] for c in calls if c in lines]
        self.regions, self.shared = regions, shared

    def finding(self, f):
        kind, remedy = KINDS[f.kind]
        file, line = self.lines.get(f.where, ("", 0))
        block, thread = self._place(f.who)
        who, threads = self._thread(f.who, with_block=math.prod(self.grid) > 1), (thread,)
        where = self._element(f) or f"address {f.offset:#x}"
        if f.kind == OUT_OF_BOUNDS:
            size, remedy = self._outside(f, remedy)
            text = f"{who} {NOW[f.how]} {where}, {size}"
            region = self.regions[f.region] if 0 <= f.region < len(self.regions) else None
            if region and abs(f.offset) > 2 * (region.n_bytes + GUARD):
                far = f"{abs(f.offset):,} bytes away from the nearest"
                text = f"{who} {NOW[f.how]} an address far from all arrays, {far}"
            if f.count > 1:
                text += f" (and {count(f.count - 1, 'more access', 'more accesses')} on this line)"
        elif f.kind == BAD_INDEX:
            name = array_on(self.path, file, line, _c_type(f), {v.name for v in self.shared})
            text = f"{who} uses index {f.offset} of {name}"
            remedy = NEGATIVE if f.offset < 0 else remedy
        elif f.kind == MISALIGNED:
            lie = f"which must begin at a multiple of {f.size} bytes"
            text = f"{who} uses {where} as a {_c_type(f)}, {lie}"
        elif f.kind in (UNWRITTEN, UNINITIALISED):
            nobody = "no thread of its block" if f.kind == UNWRITTEN else "no thread"
            text = f"{who} reads {where}, which {nobody} has written"
        elif f.kind in (RACE, BLOCK_RACE, DOUBLE_WRITE):
            text, remedy = self._race(f, who, where, remedy)
            threads = (thread, self._place(f.other_who)[1])
        elif f.kind == CONST_WRITE:
            text = f"{who} writes {where}"
        elif f.kind == DIVISION:
            text = f"{who} divides an integer by zero"
        elif f.kind == SHIFT:
            text = f"{who} shifts by {f.offset} bits"
        elif f.kind == PAST_OBJECT:
            text = (f"{who} uses a pointer to {_c_type(f)} outside of the array or variable that "
                    "it points into")
            if f.region >= 0:
                size, remedy = self._outside(f, remedy)
                text = f"{who} uses {where}, {size}"
        elif f.kind == OTHER_STACK:
            text = (f"{who} {NOW[f.how]} a local variable of another thread, or a local variable "
                    "that no longer exists")
        elif f.kind == STALE:
            text = f"{who} {NOW[f.how]} address {f.offset:#x}, which is no longer in use"
        elif f.kind == FAULTED:
            text = f"{who} {FAULTS.get(f.count, f'was stopped by signal {f.count}')}"
            remedy = FAULT_REMEDIES.get(f.count, remedy)
            kind = KINDS[DIVISION][0] if f.count in FAULT_REMEDIES else kind
        elif f.kind == ENDLESS:
            text = (f"{who} is here after {f.offset} s of processor time in which no block came to "
                    "its end (MINIDL_WATCHDOG sets another limit)")
            if not line and f.text:  # the thread is not at an access, but at a barrier
                file, line = Path(ctypes.string_at(f.text).decode()).name, f.size
            if not line:
                file, line = self.lines.get(f.other_where, ("", 0))
            if loops := enclosing_loops(self.path, file, line):
                text += f"; in the loop of line {', of line '.join(map(str, loops))}"
            if f.atomics:  # in an ENDLESS finding, `atomics` counts the blocks that had not begun
                n = math.prod(self.grid)
                text += f"; {f.atomics} of {count(n, 'block')} had not begun"
                remedy = f"{remedy} {BLOCKS_WAIT}"
        elif f.kind == STACK_FULL:
            text = f"{who} needs more than 512 KiB of stack"
            if calls := [str(n) for n in dict.fromkeys(self.calls)]:
                text += f", in calls at line {', line '.join(calls)}"
            if large := large_locals(self.path):
                text += f"; large local variables: line {', line '.join(map(str, large))}"
                file, line = file or self.path.name, line or large[0]
        elif f.kind == TOO_MUCH_SHARED:
            text = (f"the __shared__ variables of the block have {f.offset:,} bytes with "
                    f"{self.shared[f.region - len(self.regions)].name}")
            if f.size:
                text += f", and {f.size:,} dynamic ones, shared_mem="
        elif f.kind == LOCAL_OUTSIDE:
            name = ctypes.string_at(f.text).decode()
            text = (f"{who} {NOW[f.how]} {name}[{f.offset}], but the local array {name} has "
                    f"{count(f.size, 'element')}" if f.size else
                    f"{who} {NOW[f.how]} memory next to {name}, which is not an array")
            remedy = NEGATIVE if f.offset < 0 else remedy
        elif f.kind == LOCAL_UNWRITTEN:
            text = f"{who} reads {_local(f)}, which it has not written"
        elif f.kind == NOT_SHARED:
            text = f"{who} uses {where} as a row of ldmatrix, which is in global memory"
        elif f.kind == LOCAL_ENDED:
            text = f"{who} {NOW[f.how]} {_local(f)}, which has ended"
        else:  # NOT_ALL_WRITTEN is found after the run, so it has no thread and no line
            part = self.regions[f.region].part_at(f.offset)
            text = f"{count(f.count, 'element')} of {part.name} never written, the first is {where}"
            return Finding(kind, text, remedy)
        return Finding(kind, text, remedy, file, line, bool(f.warning), block, threads, f.count)

    def _race(self, f, who, where, remedy):
        line = self.lines.get(f.other_where, ("", 0))[1]
        at = f" at line {line}" if line else ""
        other = self._thread(f.other_who, with_block=f.kind != RACE)
        text = f"{who} {NOW[f.how]} {where}, {other} {BEFORE[f.other_how]} it{at}"
        if f.kind == RACE:
            text += ", no barrier between"
            n = math.prod(self.block)
            one_warp = (f.who - 1) % n // 32 == (f.other_who - 1) % n // 32
            barrier = "__syncwarp() or __syncthreads()" if one_warp else "__syncthreads()"
            remedy = remedy.format(barrier=barrier)
            if ATOMIC in (f.how, f.other_how):
                remedy += " An atomic has an order only with other atomics."
            elif f.region < len(self.regions):
                remedy += " If several threads add to one element: atomicAdd."
        if f.warning == 1:
            text += "; both write the same value"
        if f.atomics:
            remedy += f" {FENCE}"
        return text, remedy

    def _place(self, who):
        """Returns (block, thread): the coordinates of the block and of the thread. who: 1 + the
        number of the thread in the grid."""
        n = math.prod(self.block)
        return coordinates((who - 1) // n, self.grid), coordinates((who - 1) % n, self.block)

    def _thread(self, who, with_block):
        block, thread = self._place(who)
        text = f"thread {_tuple(thread, self.block)}"
        return text + f" of block {_tuple(block, self.grid)}" if with_block else text

    def _element(self, f):
        if f.region < 0:
            return ""
        if f.region < len(self.regions):
            return self.regions[f.region].element(f.offset, f.size * (f.kind != MISALIGNED))
        return self.shared[f.region - len(self.regions)].at(f.offset)

    def _outside(self, f, remedy):
        """Returns (text, remedy) for the finding f, an access outside of an array. The text has the
        size of the array that is nearest to the access."""
        if f.region < 0:
            return ("a NULL pointer", NULL) if f.offset < PAGE else ("which is in no array", remedy)
        if f.region < len(self.regions):
            part = self.regions[f.region].part_at(f.offset)
            if part.index(f.offset) < 0:
                remedy = NEGATIVE
            return f"but {part.name} has {count(part.array.size, 'element')}", remedy
        variable = self.shared[f.region - len(self.regions)]
        n = count(variable.n_bytes // variable.element, "element")
        if variable.rows < 0:
            return f"but the launch gave shared_mem={variable.n_bytes}, {n}", IN_DYNAMIC
        remedy = IN_SHARED if variable.is_shared else KINDS[BAD_INDEX][1]
        return f"but {variable.name} has {n}", NEGATIVE if f.offset < 0 else remedy


def compiler_finding(path, file, line, option, text):
    """Returns a Finding for a warning of the C++ compiler. path: the path of the kernel's file."""
    kind, remedy = COMPILER[option]
    name = re.search(r"[‘'](\w+)['’]", text)
    if "uninit" in option and name:
        if uses := earlier_uses(path, file, line, name[1]):
            text += f"; it is used before at line {', line '.join(map(str, uses))}"
    return Finding(kind, f"the compiler says: {text}", remedy, file, line, warning=True)


def engine_finding(text):
    """Returns the Finding for a sentence of the fibre engine."""
    found = re.match(r"block \((\d+), (\d+), (\d+)\): (.*)", text, re.S)
    block, text = (tuple(map(int, found.groups()[:3])), found[4]) if found else (None, text)
    at = re.search(r"line (\d+) of (.+?\.\w+)(?=[\s:,.]|$)", text)
    file, line = (at[2], int(at[1])) if at else ("", 0)
    for words, kind, remedy in ENGINE:
        if words in text:
            text = re.sub(rf"^({kind}|line \d+ of [^:]*): ", "", text)
            return Finding(kind, text, remedy, file, line, block=block)
    return Finding("stopped", text, "The sentence above is all that is known.", file, line)


def coordinates(i, size):
    return i % size[0], i // size[0] % size[1], i // size[0] // size[1]


def _tuple(place, size):
    """Returns the coordinates `place` (x, y, z) as text, such as '(3, 1, 0)'. If `size` is 1 in z,
    returns '(3, 1)'. If `size` is 1 in y and in z, returns '3'. size: the size of the grid or of
    the block."""
    dimensions = max((d + 1 for d in range(3) if size[d] > 1), default=1)
    return str(place[0]) if dimensions == 1 else str(tuple(place[:dimensions]))


def _local(f):
    """Returns the local variable of the finding f as text: 'four[0], a local array' or 'v, a local
    variable'. f.size is 0 if the variable is not an array."""
    name = ctypes.string_at(f.text).decode()
    return f"{name}[{f.offset}], a local array" if f.size else f"{name}, a local variable"


def _c_type(f):
    """Returns the compiler's name for the type of the array in the finding f, such as
    'float [64]'."""
    return re.sub(r"\b(const|struct) ", "", ctypes.string_at(f.text).decode().strip("'"))
