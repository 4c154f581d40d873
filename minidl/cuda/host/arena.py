"""Copies a kernel's arrays into one piece of memory, with guards between them, for a check.

    | guard | a a a a | guard | b b b b | guard | ...       a[4] is in a guard: an error

Arguments that overlap in memory (out is x, or two views of one array) are one region. In the copy
they overlap in the same way.
Test: tests/cuda/checks/test_check.py
"""

import numpy as np

from minidl.cuda.host.includes import KernelError

GUARD = 64 * 1024  # bytes of a guard. The guard after a larger array has the array's size
PAGE = 4096


class Arena:
    """The memory of one launch, with its regions. Makes the arguments that replace the user's
    arguments.

    parameters: [Parameter], the parameters of the kernel. args: the user's arguments.
    outputs, reachable: as in checker.check().
    allocate: a function. allocate(n_bytes) returns an array of uint8. The default is np.empty."""

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
            # On a GPU an allocation starts at a multiple of 256 bytes, but a view such as x[1:]
            # does not. The copy has the same distance from a multiple of 256 as the view would have
            # on a GPU.
            r.offset = offset + r.parts[0].misalignment
            offset = r.offset + r.n_bytes + max(GUARD, r.n_bytes)
            offset = -(-offset // PAGE) * PAGE
        # A guard takes no memory, because the system gives memory to a page only when the page is
        # written.
        allocate = allocate or (lambda n_bytes: np.empty(n_bytes, np.uint8))
        self.memory = allocate(offset + 2 * PAGE)
        start = -self.memory.ctypes.data % PAGE
        for r in self.regions:
            r.memory = self.memory[start + r.offset : start + r.offset + r.n_bytes]

    @property
    def writeable(self):
        return [r for r in self.regions if not r.const]

    def passed(self):
        """Returns the arguments, with each array replaced by its copy. If an array is a table of
        addresses, its copy has the addresses of the copies."""
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
        """Translates `address`, an entry of the user's table: returns the address of the same byte
        in the copies. If `address` is 0, returns 0. Raises KernelError if `address` is in no array
        of this launch."""
        for r in self.regions:
            if r.begin <= address < max(r.end, r.begin + 1):
                return r.memory.ctypes.data + address - r.begin
        if address:
            raise KernelError(f"kernel {self.kernel}: {table!r} is a table of addresses, and one "
                              "address points to an array that the check form does not know. Pass "
                              "the arrays of the table: minidl.cuda.check(kernel, grid, block, "
                              "args, reachable=[...])")
        return 0

    def in_order(self):
        """Returns the indices into `regions`, in the order of the kernel's parameters. (`regions`
        itself is in the order of addresses.)"""
        names = [p.name for p in self.parameters]

        def place(i):
            parts = self.regions[i].parts
            return min((names.index(p.name) for p in parts if p.name in names), default=len(names))

        return sorted(range(len(self.regions)), key=place)


class Part:
    """One array argument, and its place in the user's memory."""

    def __init__(self, name, array, const, uninitialised, is_table):
        self.name, self.array, self.const = name, array, const
        self.uninitialised, self.is_table = uninitialised, is_table
        self.begin, self.n_bytes = array.ctypes.data, array.nbytes
        self.offset = 0  # bytes from the start of the region
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        self.misalignment = (self.begin - owner.ctypes.data) % 256

    def index(self, offset):
        """Returns the index of the element at a byte offset in the region. The index is negative if
        the offset is before the array."""
        return (offset - self.offset) // self.array.itemsize

    def of(self, memory):
        """Returns this array's elements as a 1-d array. memory: a copy of the region's memory."""
        return memory[self.offset : self.offset + self.n_bytes].copy().view(self.array.dtype)


class Region:
    """The memory of one array, or of several arrays that overlap."""

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
        """Returns the number of bytes for one cell of shadow memory. It is the size of one element
        if all arrays of the region begin at multiples of this size. Else it is 1."""
        size = min(p.array.itemsize for p in self.parts)
        fits = size in (1, 2, 4, 8) and self.n_bytes % size == 0
        return size if fits and all(p.offset % size == 0 for p in self.parts) else 1

    def view(self, part):
        piece = self.memory[part.offset : part.offset + part.n_bytes]
        return piece.view(part.array.dtype).reshape(part.array.shape)

    def fill(self):
        if self.uninitialised:
            self.memory[...] = 0xFF  # bytes 0xFF are NaN in every float type
            return
        for p in self.parts:
            self.view(p)[...] = p.array

    def write_back(self, memory):
        """Copies the kernel's results from `memory` into the user's arrays."""
        for p in self.parts:
            if not p.const and not p.is_table:
                p.array[...] = p.of(memory).reshape(p.array.shape)

    def part_at(self, offset):
        inside = (p for p in self.parts if p.offset <= offset < p.offset + p.n_bytes)
        return next(inside, self.parts[0])

    def element(self, offset, size=0):
        """Returns the name of the element at `offset`, such as 'x[1000]'. The element may be
        outside of the array. size: a number of bytes. If these bytes have several elements, returns
        one name for all of them: 'x[4..7]'."""
        part = self.part_at(offset)
        first, last = part.index(offset), part.index(offset + max(size, 1) - 1)
        return f"{part.name}[{first}]" if first == last else f"{part.name}[{first}..{last}]"
