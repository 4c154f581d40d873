"""ONNX's If and Loop. The branch is chosen, and the loop is unrolled, while the graph is made.

Test: tests/infer/onnx/test_every_operator.py, test_operators.py
"""

import numpy as np

from minidl.infer.onnx.operator import Known, Raw, Refused, m, operators
from minidl.tensor import Tensor


def If(condition: Known, *, then_branch, else_branch, _run):
    return tuple(_run(then_branch if condition.item() else else_branch))


def Loop(limit: Known, condition: Known, *carried: Raw, body, _run):
    """Unrolls the loop. The number of rounds must not depend on the graph's inputs."""
    carried, columns, i = list(carried), None, 0
    while (limit is None or i < limit.item()) and (condition is None or _whether(condition)):
        results = _run(body, np.array(i), np.array(True), *carried)
        n = len(carried)
        condition, carried = results[0], results[1:1 + n]
        columns = [[] for _ in results[1 + n:]] if columns is None else columns
        for column, y in zip(columns, results[1 + n:], strict=True):
            column.append(y)
        i += 1
    if columns is None and len(body.output) > 1 + len(carried):
        raise Refused("the loop has 0 rounds, so the shape of its collected results is unknown")
    return *carried, *map(_stacked, columns or [])


def _whether(condition):
    """Returns the loop's condition as a bool."""
    if not isinstance(condition, np.ndarray):
        raise Refused("the condition of a loop depends on the graph's inputs. But the number of "
                      "rounds of a loop must be the same for all inputs")
    return bool(condition.item())


def _stacked(xs, axis=0):
    if all(isinstance(x, np.ndarray) for x in xs):
        return np.stack(xs, axis)
    return m.stack([_tensor(x) for x in xs], axis)


def _tensor(x):
    return x if isinstance(x, Tensor) else Tensor(np.asarray(x))


TABLE = operators(globals())
