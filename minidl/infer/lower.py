"""Turns lines of a graph into launches: a kernel, its grid and its arguments.

    linear(x, w, b) then relu(.)     ->   extern "C" __global__ void linear_0(out, a, w, bias) {...}
                                          grid (1, 8), args (%0, x, w in panels, b)
    reshape, permute, x[:, 0]        ->   no launch: another view of the same bytes
    a line without a kernel          ->   its eager op, named in print(plan)

In a generated kernel the sizes are constants, so the compiler knows them. `infer.cuh` has the
loops. This file writes the C text that differs between kernels. Attention, norms and softmax use
the kernels of training. Launches with the same text share one kernel.
Test: tests/infer/test_lower.py
"""

import math
from collections import namedtuple

import numpy as np

from minidl.cuda import dispatch, launch, rows
from minidl.infer import code
from minidl.infer.graph import Value
from minidl.ops import attention_kernel, index, linear, shape

PANEL = 32  # the columns of a panel, as in kernels/cpu/infer.cuh
# ROWS: the most rows of a product that a block computes. With such small blocks, two threads get
# equal parts of the work even if there are few panels.
ROWS = 32
CHUNK = 4096  # a block computes at most this number of elements of a chain
VIEWS = (shape.Reshape, shape.Permute, shape.Expand, shape.Split, shape.Unbind, index.Getitem)
SINK = "x"  # the C name of a product's result in the steps after the product
# A Layout tells where the elements of a value are: in the bytes of the Value `root`, from byte
# `offset` on. The strides are in bytes, as in NumPy.
Layout = namedtuple("Layout", "root offset strides")


class Launch:
    """One launch of a plan. Exactly one of text, kernel and eager is given.

    text: the C text of a generated kernel, with NAME instead of the kernel's name.
    kernel: a function that returns a kernel of the project.
    eager: a Node without a kernel. It runs as an eager op.
    args: a list of arrays, numbers, Values and pairs (Value, function). The function of a pair gets
    the Value's array and returns the argument.
    writes, reads: the Values that the launch writes and reads."""

    def __init__(self, op, writes, args, grid=1, block=1, text=None, kernel=None, eager=None):
        self.op, self.writes, self.args, self.grid, self.block = op, writes, args, grid, block
        self.text, self.kernel, self.eager = text, kernel, eager
        given = eager.inputs if eager else [a[0] if isinstance(a, tuple) else a for a in args]
        self.reads = [v for v in given if isinstance(v, Value) and v not in writes]


class Lowering:
    """The launches of a graph, in order, and the layouts of its values.

    table: {operation: a function of (lowering, node)}. The function adds the launches of the node.
    If the function returns False, the node runs as an eager op."""

    def __init__(self, graph, table):
        self.launches, self.layouts, self.dummies = [], {}, {}
        # checked: pairs (i, n). Graph input i holds indices into an embedding's table of n rows
        self.inputs, self.checked = graph.inputs, []
        self.table = table  # if empty, all nodes are eager, as on a GPU (streams.py)
        # constants: (launch, index of an argument) for each argument that is a constant array
        self.constants = []
        for value in graph.inputs:
            self.own(value)
        for node in graph.nodes:
            if node.kind in VIEWS and not node.steps and self.view(node):
                continue
            lower = table.get(node.op)
            try:
                done = lower and lower(self, node)
            except KeyError as error:
                raise ValueError(
                    f"lower: line {node.op}: its kernel wants {error}; got the attributes "
                    f"{sorted(node.attributes)} and the steps {[s.op for s in node.steps]}. Give "
                    "the line the attributes that infer.trace writes for this op: print(graph) "
                    "shows them") from error
            if not done:
                self.eager(node)

    def own(self, value):
        """Reserves bytes in the arena for a value that is not a view. Returns the value."""
        # Nothing is written into the array, so the system gives it no memory.
        self.dummies[value] = np.empty(value.shape, value.dtype)
        self.layouts[value] = Layout(value, 0, self.dummies[value].strides)
        return value

    def array(self, value):
        """Returns an array with the value's shape and strides. Its numbers have a meaning only if
        the value is a constant."""
        if value.array is None:
            return self.dummies[value]
        return launch.contiguous(np, value.array)

    def view(self, node):
        """Records that the results of a node are views of the input's bytes, and returns True.
        Returns False if the results are not views. There is one exception. If a reshape of a
        strided input is not a view, this function adds a launch that copies the input, and returns
        True. The results are then views of this copy."""
        source = node.inputs[0]
        if source.array is not None:
            return False
        made = node.evaluate([self.array(source)])
        if not all(np.may_share_memory(y, self.array(source)) for y in made):
            if node.kind is not shape.Reshape or not self.table:
                return False
            made = node.evaluate([self.array(source := self.contiguous(source))])
        base = self.layouts[source]
        start = self.array(source).ctypes.data
        for value, y in zip(node.outputs, made, strict=True):
            self.dummies[value] = y
            self.layouts[value] = Layout(base.root, base.offset + y.ctypes.data - start, y.strides)
        return True

    def contiguous(self, value):
        """Returns the value if its layout is C-contiguous, else a contiguous copy."""
        if self.array(value).flags.c_contiguous:
            return value
        return self.copy(value, Value(value.shape, value.dtype))

    def copy(self, value, to):
        """Adds a launch that copies a float32 value to the Value `to`. Returns `to`."""
        if value.dtype != np.float32:
            raise NotImplementedError(f"lower: wanted a float32 array to copy; got a strided "
                                      f"{value.type}. Make the array contiguous in the model")
        self.add(*elementwise(self, "copy", [value], (), self.own(to)))
        return to

    def eager(self, node):
        """Adds an eager op for the node. Returns True."""
        for value in node.outputs:
            self.own(value)
        self.launches.append(Launch(node.op, node.outputs, (), eager=node))
        return True

    def add(self, op, writes, text, args, grid):
        """Adds a launch of a generated kernel. text: the body of the kernel. args: [(C declaration,
        argument)]. Returns True."""
        names = ", ".join(declared for declared, _ in args)
        text = f'extern "C" __global__ void NAME({names}) {{\n{text}\n}}'
        self.launches.append(Launch(op, writes, [a for _, a in args], grid, text=text))
        self.constants += [(self.launches[-1], k) for k, (declared, a) in enumerate(args)
                           if declared.startswith("const") and isinstance(a, np.ndarray)]
        return True

    def call(self, op, writes, kernel, grid, block, args):
        """Adds a launch of one of the project's kernels. kernel: a function that returns the
        kernel. Returns True."""
        self.launches.append(Launch(op, writes, args, grid, block, kernel=kernel))
        return True


# ---- products ----


def packed(w):
    """Returns w (n, k) as a 1-d array of panels, one after another. A panel is PANEL rows of w,
    transposed to (k, PANEL). The last panel may be narrower. Its width is rounded up to a multiple
    of 16, and the added columns are zeros."""
    n, k = w.shape
    parts = []
    for first in range(0, n, PANEL):
        width = min(PANEL, n - first)
        panel = np.zeros((k, -(-width // 16) * 16), np.float32)
        panel[:, :width] = w[first:first + width].T
        parts.append(panel.reshape(-1))
    out = linear.aligned(n * k + 16 * k + PANEL * 16)  # the kernel prefetches past the last panel
    flat = np.concatenate(parts)
    out[:flat.size] = flat
    return out


def steps_of(low, node, shape, bias, steps=None):
    """Returns (C lines, name, arguments) for the steps after a product. name: the C variable with
    the last result. In the C lines, `x` is the product's sum. Returns None if an operand of a step
    has none of these forms: a number, an array of the result's shape, a vector along the result's
    last dimension.

    shape: the shape of the product's result.
    bias: a constant Value that is added to each row, or None.
    steps: the steps to write. None means all steps of the node."""
    args, loads = [], {}
    for i in range(node.n_own, len(node.inputs)):
        value = node.inputs[i]
        loads[i] = code.operand(i, value, shape)
        if loads[i] is None:
            return None
        if loads[i][0] == "e":
            args.append((f"const float* e{i}", low.contiguous(value)))
    text, result = code.lines(node.steps if steps is None else steps, SINK, loads)
    if bias is not None:
        args.append(("const float* bias", bias))
        text.insert(0, "x += bias[col];")
    return text, result, args


def is_constant(x, n_dims=None):
    """Returns True if x is a constant float32 Value. If n_dims is given, x must also have this
    number of dimensions."""
    return isinstance(x, Value) and x.array is not None and x.dtype == np.float32 and (
        n_dims is None or x.array.ndim == n_dims)


def lower_linear(low, node):
    """Adds the launch of a linear or matmul line. Returns False if the line must run as an eager
    op, for example because its weights are not constant."""
    x, w, bias = (*node.inputs[:node.n_own], None)[:3]
    if not is_constant(w, 2) or x.array is not None or x.dtype != np.float32 or (
            bias is not None and not is_constant(bias)) or not x.n_bytes:
        return False
    matrix = w.array if node.op == "linear" else w.array.T
    (n, k), m = matrix.shape, math.prod(x.shape[:-1])
    found = steps_of(low, node, node.output.shape, bias)
    if found is None:
        return False
    text, result, args = found
    blocks = -(-m // ROWS)
    body = [f"  // ({m}, {k}) @ ({k}, {n})",
            f"  linear<{m}, {n}, {k}>(a, w, blockIdx.x, blockIdx.y, {blocks},",
            f"      [=](float {SINK}, int row, int col) {{",
            f"        const long long at = (long long)row * {n} + col;",
            *("        " + line for line in text), f"        out[at] = {result};", "      });"]
    args = [("float* out", low.own(node.output)), ("const float* a", low.contiguous(x)),
            ("const float* w", packed(matrix)), *args]
    return low.add(node.op, [node.output], "\n".join(body), args, (blocks, -(-n // PANEL)))


# ---- elements ----


def chain(low, node):
    """Adds the launch of a chain of elementwise steps."""
    return low.add(*elementwise(low, "chain", node.inputs, node.steps, low.own(node.output)))


def elementwise(low, op, inputs, steps, out):
    """Returns the arguments of Lowering.add for a chain over the elements of `out`: (op, writes, C
    text, arguments, grid). Strides of 0 broadcast the operands to the shape of `out`. A chain
    without steps copies the first input."""
    arrays = [low.array(v) for v in inputs]
    dims = collapsed(out.shape, [*(np.broadcast_to(a, out.shape).strides for a in arrays),
                                 low.array(out).strides])
    *outer, (n, inner) = dims
    text = ["  long long r = blockIdx.x;"]
    n_rows, chunks = math.prod(size for size, _ in outer), -(-n // CHUNK)
    text.append(f"  const int first = r % {chunks} * {CHUNK}, last = min(first + {CHUNK}, {n});")
    text.append(f"  r /= {chunks};")
    names = [*(f"e{i}" for i in range(len(inputs))), "out"]
    moves = {name: [] for name in names}
    for d in reversed(range(len(outer))):
        size, strides = outer[d]
        text.append(f"  const long long i{d} = r % {size}; r /= {size};")
        for name, s in zip(names, strides, strict=True):
            moves[name] += [f"i{d} * {s}"] if s else []
    text += [f"  {name} += {' + '.join(m)};" for name, m in moves.items() if m]
    places = {name: f"{name}[{f'(long long)j * {s}' if s > 1 else 'j' if s else '0'}]"
              for name, s in zip(names, inner, strict=True)}
    loads = {i: places[f"e{i}"] for i in range(len(inputs))}
    body, result = code.lines(steps, loads.get(0), loads)
    text += ["  SIMD for (int j = first; j < last; ++j) {", *("    " + line for line in body),
             f"    {places['out']} = {result};", "  }"]
    args = [("float* out", out), *((f"const float* e{i}", v if v.array is None else a)
                                   for i, (v, a) in enumerate(zip(inputs, arrays)))]
    return op, [out], "\n".join(text), args, max(n_rows * chunks, 1)


def collapsed(shape, strides):
    """Joins dimensions. Two neighbouring dimensions become one if, in every array, a loop with one
    stride can visit their elements in order. Returns a list with an entry (size, [the stride in
    each array, in elements]) for each dimension that is left. The list has at least one entry.

    shape: the shape of all arrays. strides: for each array its strides in bytes."""
    dims = []
    for size, *s in zip(shape, *strides, strict=True):
        s = [b // 4 for b in s]
        if size == 1:
            continue
        if dims and all(a == b * size for a, b in zip(dims[-1][1], s, strict=True)):
            dims[-1] = dims[-1][0] * size, s
        else:
            dims.append((size, s))
    return dims or [(1, [0] * len(strides))]


# ---- the kernels of training ----


def layer_norm(low, node):
    """Adds the launch of a layer norm or RMS norm."""
    x, w, b = node.inputs
    attributes, width = node.attributes, math.prod(node.attributes["shape"])
    if x.dtype != np.float32 or not x.n_bytes or (w and not is_constant(w)) or (
            b and not is_constant(b)) or node.steps:
        return False
    n_rows, centered = math.prod(x.shape) // width, attributes.get("centered", True)
    weight = w.array.reshape(-1) if w else np.ones(width, np.float32)
    shift = b.array.reshape(-1) if b else np.zeros(width, np.float32)
    mean, rstd = (low.own(Value((n_rows,), np.float32)) for _ in range(2))

    def kernel():
        return rows.kernel("cpu/layer_norm.cu", "layer_norm", np.dtype(np.float32),
                           CENTERED=int(centered))

    args = low.own(node.output), mean, rstd, low.contiguous(x), weight, shift
    return low.call(node.op, [node.output, mean, rstd], kernel, -(-n_rows // 256), 256,
                    (*args, n_rows, width, attributes["eps"]))


def softmax(low, node):
    """Adds the launch of a softmax or log-softmax over the last dimension."""
    (x,), dim = node.inputs, node.attributes["dim"]
    if x.dtype != np.float32 or node.attributes.get("dtype") or not x.n_bytes or (
            dim not in (-1, len(x.shape) - 1)):
        return False
    n_rows, log = math.prod(x.shape[:-1]), node.op == "log_softmax"

    def kernel():
        return rows.kernel("cpu/softmax.cu", "softmax", np.dtype(np.float32), LOG=int(log))

    return low.call(node.op, [node.output], kernel, -(-n_rows // 256), 256,
                    (low.own(node.output), low.contiguous(x), n_rows, x.shape[-1]))


def self_attention(low, node):
    """Adds the launch of a self-attention without a mask."""
    qkv, mask, n_heads = *(*node.inputs, None)[:2], node.attributes["n_heads"]
    if mask is not None:
        return False
    n_batch, length, width = qkv.shape
    width, e = width // 3, width // 3 // n_heads
    if node.attributes["dropout_p"] or qkv.dtype != np.float32 or not qkv.n_bytes or (
            e > attention_kernel.MAX_WIDTH):
        return False
    qkv = low.contiguous(qkv)
    parts = [(qkv, lambda a, i=i: a.reshape(-1)[i * width:]) for i in range(3)]
    lse = low.own(Value((n_batch, n_heads, length), np.float32))
    rows_of_block, threads = attention_kernel.block_of("tile", e)

    def kernel():
        return dispatch.kernel("cpu/attention_tile.cu", "attention_tile", np.float32, E=e)

    args = (low.own(node.output), lse, *parts, length, length,
            *[3 * width * length, e, 3 * width] * 3, 1 / math.sqrt(e),
            int(node.attributes["is_causal"]), *attention_kernel.NEITHER[0])
    return low.call(node.op, [node.output, lse], kernel,
                    (-(-length // rows_of_block), n_heads, n_batch), threads, args)


def embedding(low, node):
    """Adds the launch of an embedding. Returns False if the line must run as an eager op, for
    example if the indices are not an input of the graph. A plan checks indices only in its
    inputs."""
    ids, table = node.inputs
    if ids not in low.inputs or not is_constant(table, 2) or ids.dtype != np.int64 or (
            not ids.n_bytes):
        return False
    n, width = math.prod(ids.shape), table.shape[1]
    low.checked.append((low.inputs.index(ids), table.shape[0]))
    text = (f"  const float* row = table + ids[blockIdx.x] * {width};\n"
            f"  SIMD for (int j = 0; j < {width}; ++j) out[blockIdx.x * {width}LL + j] = row[j];")
    args = [("float* out", low.own(node.output)), ("const long long* ids", ids),
            ("const float* table", np.ascontiguousarray(table.array))]
    return low.add("embedding", [node.output], text, args, n)


LOWER = {"linear": lower_linear, "matmul": lower_linear, "layer_norm": layer_norm,
         "rms_norm": layer_norm, "softmax": softmax, "log_softmax": softmax,
         "self_attention": self_attention, "embedding": embedding, "chain": chain}


def source(launches):
    """Returns (the .cu text of all generated kernels, {launch: the name of its kernel}). Launches
    with the same text get the same kernel."""
    names, chosen, texts = {}, {}, []
    for i, line in enumerate(launches):
        if line.text is None:
            continue
        if line.text not in names:
            names[line.text] = f"{line.op}_{i}"
            texts.append(line.text.replace("NAME", names[line.text], 1))
        chosen[line] = names[line.text]
    head = ("// Generated by minidl.infer.\n#include \"cpu/infer_cache.cuh\"\n"
            "#include \"cpu/infer_int8.cuh\"\n#include \"cpu/infer_winograd.cuh\"\n\n")
    return head + "\n\n".join(texts) + "\n", chosen
