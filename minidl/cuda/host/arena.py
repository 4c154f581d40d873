"""Where the check form keeps a kernel's arrays: copies in one piece of memory, guards between.

    | guard | a a a a | guard | b b b b | guard | ...       a[4] lies in a guard: an error

Arguments that overlap in memory (out is x, or two views of one array) are one region, and overlap
in the copy as well. Test: tests/cuda/checks/test_check.py
"""

import numpy as np

from minidl.cuda.host.includes import KernelError

GUARD = 64 * 1024  # bytes between arrays, at least; as many as the array has, if that is more
PAGE = 4096


class Arena:
    """The regions of one launch, and the arguments that are passed in place of the user's."""

    def __init__(self, kernel, parameters, args, outputs=(), reachable=(), allocate=None):
        self.kernel, self.parameters, self.args = kernel, parameters, args
        parts = [Part(p.name, a, p.const, p.name in outputs, p.text.count("*") > 1)
                 for p, a in zip(parameters, args, strict=True)
                 if p.kind == "pointer" and a is not None]
        parts += [Part(f"reachable[{k}]", a, False, False, False) for k, a in enumerate(reachable)]
        self.regions = []
        for part in sorted(parts, key=lambda p: (p.begin, -p.n_bytes)):
            if self.regions and part.begin < self.regions[-1].end:
                self.regions[-1].add(part)
            else:
                self.regions.append(Region(part))
        offset = GUARD
        for r in self.regions:
            # on a GPU an allocation starts at a multiple of 256, and a view x[1:] is misaligned;
            # the copy is as far from such a multiple as the array from its allocation's start
            r.offset = offset + r.parts[0].misalignment
            offset = r.offset + r.n_bytes + max(GUARD, r.n_bytes)
            offset = -(-offset // PAGE) * PAGE
        # guards take no memory until touched
        allocate = allocate or (lambda n_bytes: np.empty(n_bytes, np.uint8))
        self.memory = allocate(offset + 2 * PAGE)
        start = -self.memory.ctypes.data % PAGE
        for r in self.regions:
            r.memory = self.memory[start + r.offset : start + r.offset + r.n_bytes]

    @property
    def writeable(self):
        return [r for r in self.regions if not r.const]

    def passed(self):
        """The arguments, arrays replaced by their copies; tables of addresses point to copies."""
        copies = {part.name: r.view(part) for r in self.regions for part in r.parts}
        args = []
        for p, a in zip(self.parameters, self.args, strict=True):
            if p.kind == "pointer" and a is not None:
                a = copies[p.name]
                if p.text.count("*") > 1:
                    a.flat = [self._moved(int(address), p.name) for address in a.flat]
            args.append(a)
        return args

    def _moved(self, address, table):
        """Where the copy lies of what the user's table of addresses points to."""
        for r in self.regions:
            if r.begin <= address < max(r.end, r.begin + 1):
                return r.memory.ctypes.data + address - r.begin
        if address:
            raise KernelError(f"kernel {self.kernel}: {table!r} is a table of addresses, and one "
                              "is of an array that the check form does not know. Name the arrays: "
                              "minidl.cuda.check(kernel, grid, block, args, reachable=[...])")
        return 0

    def in_order(self):
        """Numbers of the regions, as the parameters stand in the kernel, not as the arrays lie."""
        names = [p.name for p in self.parameters]

        def place(i):
            parts = self.regions[i].parts
            return min((names.index(p.name) for p in parts if p.name in names), default=len(names))

        return sorted(range(len(self.regions)), key=place)


class Part:
    """One array argument: where it lies in the user's memory."""

    def __init__(self, name, array, const, uninitialised, is_table):
        self.name, self.array, self.const = name, array, const
        self.uninitialised, self.is_table = uninitialised, is_table
        self.begin, self.n_bytes = array.ctypes.data, array.nbytes
        self.offset = 0  # in its region
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        self.misalignment = (self.begin - owner.ctypes.data) % 256

    def index(self, offset):
        """Number of the element at an offset in the region; negative before the array."""
        return (offset - self.offset) // self.array.itemsize

    def of(self, memory):
        """This array's elements, flat, in a copy of its region's memory."""
        return memory[self.offset : self.offset + self.n_bytes].copy().view(self.array.dtype)


class Region:
    """Memory of one array, or of several that overlap."""

    def __init__(self, part):
        self.parts, self.begin, self.end = [part], part.begin, part.begin + part.n_bytes

    def add(self, part):
        part.offset = part.begin - self.begin
        self.parts.append(part)
        self.end = max(self.end, part.begin + part.n_bytes)

    @property
    def name(self):
        return "=".join(p.name for p in self.parts)

    @property
    def n_bytes(self):
        return self.end - self.begin

    @property
    def const(self):
        return all(p.const for p in self.parts)

    @property
    def uninitialised(self):
        return all(p.uninitialised for p in self.parts)

    @property
    def granule(self):
        """Bytes of a cell of shadow memory: an element, if all parts begin at multiples of it."""
        size = min(p.array.itemsize for p in self.parts)
        fits = size in (1, 2, 4, 8) and self.n_bytes % size == 0
        return size if fits and all(p.offset % size == 0 for p in self.parts) else 1

    def view(self, part):
        piece = self.memory[part.offset : part.offset + part.n_bytes]
        return piece.view(part.array.dtype).reshape(part.array.shape)

    def fill(self):
        if self.uninitialised:
            self.memory[...] = 0xFF  # NaN in every float type
            return
        for p in self.parts:
            self.view(p)[...] = p.array

    def write_back(self, memory):
        """Copy the kernel's results into the user's arrays."""
        for p in self.parts:
            if not p.const and not p.is_table:
                p.array[...] = p.of(memory).reshape(p.array.shape)

    def part_at(self, offset):
        inside = (p for p in self.parts if p.offset <= offset < p.offset + p.n_bytes)
        return next(inside, self.parts[0])

    def element(self, offset, size=0):
        """'x[1000]': the element at `offset`, which may lie outside; 'x[4..7]' by `size`."""
        part = self.part_at(offset)
        first, last = part.index(offset), part.index(offset + max(size, 1) - 1)
        return f"{part.name}[{first}]" if first == last else f"{part.name}[{first}..{last}]"
