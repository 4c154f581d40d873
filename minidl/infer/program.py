"""A plan: a table of launches with fixed addresses, and the arena for their arrays.

    plan(x)     is the model unchanged?       compare versions, flags, shapes, dtypes and indices
                copy x into the arena         the addresses in the table do not change
                replay(table, 0, n)           one C loop over all launches (kernels/host/replay.cpp)
                copy the result out           a new array: the next call overwrites the arena

An input or a result of 512 KiB or more is not copied. The plan writes its address into the table,
instead of the address in the arena. The limit comes from a measurement with an int8 layer of width
1,024. With 256 rows the copies of the input and of the result took a sixth of the layer's time.
With 64 rows the layer is faster with the copies, because the arena is in the caches.

One launch from Python takes some microseconds. All the arithmetic of a small layer takes about
as long. One launch in a replay takes a fraction of a microsecond. A line of the graph without a
kernel runs as an eager op between two parts of the table.
A CUDA graph uses the same idea on a GPU.   Test: tests/infer/test_program.py
"""

import ctypes
import mmap
import threading
from typing import Any

import numpy as np

from minidl.backend import address
from minidl.cuda import KernelError, dispatch, run
from minidl.cuda.host import cpu
from minidl.infer import cache, images, lower, memory, whole
from minidl.infer.trace import refuse_gpu
from minidl.ops import linear
from minidl.tensor import Tensor

HUGE = 2 << 20  # bytes of a large page
DIRECT = 1 << 19  # inputs and results of this number of bytes or more are not copied
HEAD = 40  # bytes of a MinidlLaunch before its arguments, which take 8 bytes each


class Call(ctypes.Structure):  # has the layout of MinidlCall in kernels/host/replay.cpp
    _fields_ = [("launcher", ctypes.c_void_p), ("launch", ctypes.c_void_p)]


def memory_of(n_bytes):
    """Returns a uint8 array of n_bytes for the weights of a plan. If Linux can, it uses pages of 2
    MiB for this array. On request, Linux gives large pages to memory that begins and ends at the
    boundary of a page. One step of a text model reads all weights once. With large pages the
    processor looks up 500 times fewer page addresses. On a Zen 4, a step then took 0.6 of the time
    if the weights were in memory. If the weights were in the L3 cache, it took 0.85 of the time."""
    if n_bytes < HUGE // 2 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return linear.aligned(-(-n_bytes // 4)).view(np.uint8)
    size = -(-n_bytes // HUGE) * HUGE
    memory = mmap.mmap(-1, size + HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    block = np.frombuffer(memory, np.uint8)
    return block[-block.ctypes.data % HUGE:][:n_bytes]


def together(constants):
    """Copies constant arguments of launches into one block of memory, in the order of the launches.
    constants: [(launch, number of the argument)]."""
    sizes = [-(-launch.args[k].nbytes // memory.ALIGN) * memory.ALIGN for launch, k in constants]
    block, at = memory_of(sum(sizes)), 0
    for (launch, k), size in zip(constants, sizes, strict=True):
        a = launch.args[k]
        launch.args[k] = block[at:at + a.nbytes].view(a.dtype).reshape(a.shape)
        launch.args[k][...] = a
        at += size


class Plan:
    """plan(*inputs) runs the graph. It returns a Tensor or a tuple of Tensors, as the model does.

    inputs: Tensors or NumPy arrays, with the shapes and dtypes of the trace.
    threads: CPU threads for a large launch.
    poison: for tests. If True, all bytes that no value needs become NaN after each launch.

    The attribute `memory`, a memory.Memory, tells the size of the arena and the lower bound of this
    size. The attribute `launches` is the list of all Launches.

    A call raises RuntimeError if the model has changed since the trace, or if the plan is running
    in another thread. It raises TypeError for a wrong input. It raises IndexError if an embedding
    has no row for an index."""

    def __init__(self, graph, threads=1, poison=False):
        graph.verify()
        self.graph, self.poison, self._busy = graph, poison, threading.Lock()
        low = lower.Lowering(graph, {**images.LOWER, **cache.LOWER, **whole.LOWER})
        self.launches, self._low = low.launches, low
        self._roots, self._spans = self._lifetimes()
        self.memory = memory.plan(self._spans)
        self.arena = linear.aligned(-(-self.memory.arena // 4)).view(np.uint8)
        self._bytes = {v: self.arena[at:at + v.n_bytes]
                       for v, at in zip(self._roots, self.memory.offsets, strict=True)}
        self.text, self._names = lower.source(self.launches)
        together(low.constants)
        self._bind(self._names, threads)
        self._inputs = [(self.array(v), v.shape, v.dtype, v) for v in graph.inputs]
        # A negative index is very large if its bits are read as an unsigned number. So one
        # comparison finds the negative indices and the indices that are too large.
        self._checked = [(self._inputs[i][0].view(np.uint64), n, self._inputs[i][3])
                         for i, n in low.checked]
        self._outputs = [self.array(v) for v in graph.outputs]
        self._direct = {v: self._words_of(v) for v in (*graph.inputs, *graph.outputs)}

    def _lifetimes(self):
        """Returns (the values that are no views of other values, the Lifetimes of these values).
        Step i is launch i. The inputs are written at step -1. The results are read at step
        len(launches)."""
        first, last, layouts = {}, {}, self._low.layouts
        end = len(self.launches)
        first.update({v: -1 for v in self.graph.inputs})
        for i, launch in enumerate(self.launches):
            for v in (*launch.writes, *launch.reads):
                if v.array is None:
                    root = layouts[v].root
                    first.setdefault(root, i)
                    last[root] = i
        last.update({layouts[v].root: end for v in self.graph.outputs if v.array is None})
        roots = list(first)
        return roots, [memory.Lifetime(v.n_bytes, first[v], last.get(v, first[v])) for v in roots]

    def array(self, value):
        """Returns the array of a value: a view of the arena, or a constant's own array."""
        if value.array is not None:
            return value.array
        layout = self._low.layouts[value]
        base = self._bytes[layout.root]
        return np.ndarray(value.shape, value.dtype, base, layout.offset, layout.strides)

    def _bind(self, names, threads):
        """Makes the table of calls. Also makes the list of parts. A part is a range of calls in the
        table, or one eager op. names: {launch: the name of its generated kernel}."""
        generated = {}
        if names:
            path = dispatch.generated(self.text)
            generated = run._library(path, (), None, "auto", run._stamp(path)).kernels
        calls, self._kept, self._parts = (Call * max(len(self.launches), 1))(), [], []
        self._words = []  # (value, the array of an argument, the argument's word in the table)
        for i, launch in enumerate(self.launches):
            if launch.eager is not None:
                self._parts.append((i, i + 1, launch.eager))
                continue
            kernel = generated[names[launch]] if launch.text else launch.kernel().on_cpu
            args = [self._argument(a) for a in launch.args]
            packed = ctypes.create_string_buffer(
                kernel.signature.pack(launch.grid, launch.block, args, 0, 0, threads))
            # The Plan keeps these objects alive, because the table has only their addresses.
            self._kept += [args, packed, kernel]
            words = np.frombuffer(packed, np.uint64, len(args), HEAD)
            for k, a in enumerate(launch.args):
                value = a[0] if isinstance(a, tuple) else a
                if isinstance(value, lower.Value) and value.array is None:
                    self._words.append((self._low.layouts[value].root, args[k], words[k:k + 1]))
            calls[i] = Call(ctypes.cast(kernel.launcher, ctypes.c_void_p).value,
                            ctypes.addressof(packed))
            if not self._parts or self._parts[-1][2] is not None or self.poison:
                self._parts.append((i, i, None))
            self._parts[-1] = (self._parts[-1][0], i + 1, None)
        self._calls, self._table = calls, ctypes.addressof(calls)
        self._replay = cpu.runtime().minidl_replay

    def _argument(self, a):
        value, change = a if isinstance(a, tuple) else (a, None)
        if not isinstance(value, lower.Value):
            return value
        array = self.array(value)
        if change is not None:
            return change(array)
        return array if array.flags.c_contiguous else lower.attention_kernel.memory(array)

    def _words_of(self, value):
        """Returns a list of (word, distance), one for each word of the table that holds an address
        in the value's bytes. distance: this address minus the address of the value's first byte.
        Returns () if the value is small or must be in the arena."""
        graph, low = self.graph, self._low
        if value.array is not None or value.n_bytes < DIRECT or self.poison:
            return ()
        roots = [low.layouts[v].root for v in (*graph.inputs, *graph.outputs) if v.array is None]
        written = [low.layouts[v].root for launch in self.launches for v in launch.writes]
        # A value must be in the arena if it is a view, if two inputs or results share its bytes, or
        # if it is not contiguous (such as an image with its border). If the plan has eager ops, all
        # values must be in the arena, because eager ops read them there.
        if (low.layouts[value].root is not value or roots.count(value) > 1
                or not self.array(value).flags.c_contiguous
                or value in graph.inputs and value in written
                or any(launch.eager is not None for launch in self.launches)
                or any(graph.inputs[i] is value for i, _ in low.checked)):
            return ()
        first, found = address(self._bytes[value]), []
        for whose, array, word in self._words:
            if whose is value:
                apart = address(array) - first
                if not 0 <= apart < value.n_bytes:  # the argument is a copy of the value
                    return ()
                found.append((word, apart))
        return found

    def _point_to(self, value, array):
        """Changes the addresses in the table. The launches then use `array` instead of the value's
        array in the arena."""
        first = address(array)
        for word, apart in self._direct[value]:
            word[0] = first + apart

    def __call__(self, *inputs) -> Any:
        if not self._busy.acquire(False):
            raise RuntimeError("plan: this plan is running in another thread now, and it has only "
                               "one arena. Compile a plan for each thread")
        try:
            self._take(inputs)
            results = [self._result(v, y) for v, y in zip(self.graph.outputs, self._outputs)]
            for begin, end, eager in self._parts:
                if eager is not None:
                    self._run_eager(eager)
                elif failed := self._replay(self._table, begin, end):
                    raise KernelError(f"plan: line {failed - 1}, {self.launches[failed - 1].op}: "
                                      f"{cpu.runtime().minidl_error().decode()}")
                if self.poison:
                    self._poison(end - 1)
            results = tuple([Tensor._from(y.copy() if made is None else made)
                             for y, made in zip(self._outputs, results)])
        finally:
            self._busy.release()
        return results[0] if self.graph.single else results

    def _result(self, value, in_arena):
        """Returns a new array, into which the launches will write the result. Returns None if the
        launches must write the result into the arena. Then the caller copies the result out."""
        if not self._direct[value]:
            return None
        made = linear.aligned(-(-value.n_bytes // 4)).view(np.uint8)[:value.n_bytes]
        made = made.view(in_arena.dtype).reshape(in_arena.shape)
        self._point_to(value, made)
        return made

    def _take(self, inputs):
        """Checks the model and the inputs, and copies the inputs into the arena."""
        if self.graph.guards is not None and (changed := self.graph.guards.changed()):
            raise RuntimeError(f"plan: {changed}; trace and compile the model again")
        if len(inputs) != len(self._inputs):
            raise TypeError(f"plan: want {len(self._inputs)} inputs, got {len(inputs)}")
        for x, (to, shape, dtype, value) in zip(inputs, self._inputs):
            x = x.array if type(x) is Tensor else x
            if type(x) is not np.ndarray or x.shape != shape or x.dtype != dtype:
                refuse_gpu("plan", None, x)
                got = f"{x.dtype}{list(x.shape)}" if hasattr(x, "dtype") else type(x).__name__
                raise TypeError(f"plan: input {value.name} is {got}; this plan wants a NumPy "
                                f"array {value.type}. For another shape or dtype, trace and "
                                "compile another plan")
            if self._direct[value]:
                if x.flags.c_contiguous and x.flags.aligned:
                    self._point_to(value, x)
                    continue
                self._point_to(value, to)
            to[...] = x
        for ids, n, value in self._checked:
            if (ids.item() if ids.size == 1 else ids.max()) >= n:
                ids = ids.view(np.int64)
                raise IndexError(f"plan: got indices from {ids.min()} to {ids.max()} in input "
                                 f"{value.name}, but the embedding has rows 0 to {n - 1}")

    def _run_eager(self, node):
        arrays = [self.array(x) if isinstance(x, lower.Value) else x for x in node.inputs]
        for value, y in zip(node.outputs, node.evaluate(arrays), strict=True):
            self.array(value)[...] = y

    def _poison(self, step):
        """Writes 0xFF into all bytes of the arena that no value needs after this step. Floats in
        these bytes become NaN, and integers become -1."""
        dead = np.ones(self.arena.size, bool)
        for v, span, at in zip(self._roots, self._spans, self.memory.offsets, strict=True):
            if span.first <= step < span.last:
                dead[at:at + v.n_bytes] = False
        self.arena[dead] = 0xFF

    def source(self, name=None):
        """Returns the generated .cu text of one kernel, or of all kernels if name is None.
        print(plan) shows the names. Raises KeyError if no generated kernel has this name."""
        if name is None:
            return self.text
        for launch, its_name in self._names.items():
            if its_name == name:
                return launch.text.replace("NAME", name, 1)
        raise KeyError(f"plan: there is no generated kernel {name!r}; the generated kernels are "
                       f"{', '.join(dict.fromkeys(self._names.values()))}")

    def __str__(self):
        named, text = self.graph.names(), []
        for i, launch in enumerate(self.launches):
            made = ", ".join(named.get(v, "scratch") for v in launch.writes)
            how = (f"kernel {self._names[launch]}" if launch.text else
                   f"eager {launch.op}" if launch.eager else f"kernel {launch.kernel().name}")
            text.append(f"{i:3}  {made} = {launch.op}   {how}  grid {launch.grid}")
        return "\n".join([*text, f"memory: {self.memory}"])
