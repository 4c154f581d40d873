"""Function.apply once more, for speed: function.apply is the one to read.

What is done is the same, in the same order. Here one loop over the inputs does what several list
comprehensions do there, and what is usual has a way of its own: float32 arrays on the CPU, with no
autocast and nothing else around, go straight to forward; one array is one result.
Test: tests/test_fast_apply.py
"""

from sys import modules

from numpy import ndarray

from minidl.backend import DEFAULT_FLOAT
from minidl.forward import EXPLAINED, REPLACED, as_arrays, raise_explained, run, share_memory
from minidl.mode import NoRoom, current
from minidl.saved import pack
from minidl.tensor import Tensor


def apply(cls, *inputs, **options) -> Tensor:
    """Run forward on the arrays of `inputs` (Tensors, arrays and numbers: the latter two are
    constants) and return the result as Tensor(s), recorded in the graph if need be."""
    mode = current()
    node = cls()
    records = mode.grad and cls.differentiable
    arrays = []
    needs = []
    edges = []
    depth = 0  # of the deepest producer
    wanted = False  # whether any input wants a gradient
    # whether forward runs as it is: no block around asks for more, all arrays are float32
    plain = mode.autocast is None and mode.intercept is None

    for x in inputs:
        edge = None
        if isinstance(x, Tensor):
            array = x.array
            arrays.append(array)
            plain = plain and array.dtype is DEFAULT_FLOAT
            if records:
                memory = x._memory
                if memory is not None and memory.replaced:
                    raise RuntimeError(REPLACED)
                if x._requires_grad:
                    wanted = True
                    edge = x  # a leaf
                    producer = x.grad_fn
                    if producer is not None:
                        edge = producer, x.slot
                        if producer.depth > depth:
                            depth = producer.depth
        else:
            arrays.append(x)
            plain = plain and (x is None or type(x) is float)
        edges.append(edge)
        needs.append(edge is not None)
    node.needs = needs

    if plain and "cupy" not in modules and not (options and "ml_dtypes" in modules):
        try:
            result = node.forward(*arrays, **options) if options else node.forward(*arrays)
        except NoRoom:
            result = run(node, mode, inputs, arrays, options)  # by NumPy
        except EXPLAINED as error:
            raise_explained(error, node, arrays)
    else:
        result = run(node, mode, inputs, arrays, options)

    grad_fn = node if wanted else None
    if type(result) is ndarray:
        y = Tensor._from(result, grad_fn)
        outputs = (y,)
        if result.base is not None or (arrays and result is arrays[0]):
            share_memory(outputs, inputs)
    else:
        outputs = [Tensor._from(y, grad_fn, slot)
                   for slot, y in enumerate(as_arrays(node, result))]
        share_memory(outputs, inputs)

    if wanted:  # the node joins the graph
        node.edges = edges
        node.depth = depth + 1
        if type(result) is ndarray:
            node.output_meta = [(result.shape, result.dtype)]
        else:
            node.output_meta = [(y.array.shape, y.dtype) for y in outputs]
        if node._saved:
            pack(node, inputs, arrays, outputs, mode.packers)
    if mode.ledger is not None:
        mode.ledger.forward(node, arrays, [y.array for y in outputs])
    return tuple(outputs) if type(result) is tuple else outputs[0]
