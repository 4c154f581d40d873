"""Grades work/01_autograd.py.   Test: tests/tutorials/test_exercises.py"""

import numpy as np

import minidl
from minidl.course.grade import Wrong

SEED = 0  # `minidl check --student NAME` sets another one for each student

# (5, 5) is square: y of shape (5,) broadcasts along the wrong dimension without an error
SHAPES = ((7,), (3, 4), (5, 5), (2, 3, 1))


def gradient(module, x, gy):
    """Returns LogSumExp's gradient with respect to x. If NumPy raises an error, returns its
    text."""
    leaf = minidl.Tensor(x.copy(), requires_grad=True)
    y = module.LogSumExp.apply(leaf)
    with np.errstate(all="ignore"):
        try:
            y.backward(gy)
        except ValueError as error:  # operands could not be broadcast together
            return str(error)
    return leaf.grad


def gradient_of_two_uses(module, x, gy):
    leaf = minidl.Tensor(x.copy(), requires_grad=True)
    (module.LogSumExp.apply(leaf) + module.LogSumExp.apply(leaf * leaf)).backward(gy)
    return leaf.grad


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def grade_01a(student):
    """LogSumExp.backward returns gy times the softmax of each row, also for huge x."""
    generator = minidl.Generator(SEED + 11)
    for shape in SHAPES:
        x = generator.normal(*shape, dtype=np.float64)
        gy = generator.normal(*shape[:-1], dtype=np.float64) + 3
        what = f"x of shape {shape}"
        _is_softmax(student.run(gradient, x, gy), x, gy, what)
        yield f"{what}: every element, random gy"
    x, gy = generator.normal(3, 6, dtype=np.float64), np.array([1.0, -2.0, 0.5])
    wanted = gy[:, None] * (softmax(x) + 2 * x * softmax(x * x))
    got = student.run(gradient_of_two_uses, x, gy)
    if got is None or got.shape != x.shape or not np.allclose(got, wanted, rtol=1e-9, atol=1e-12):
        raise Wrong("x used twice: the gradient must be the sum of the gradients of both uses")
    yield "x used twice"
    for x in ([1000.0, 0.0, 999.0], [-1000.0, -1001.0, -1000.5]):
        _is_softmax(student.run(gradient, np.array(x), np.array(1.0)), np.array(x), np.array(1.0),
                    f"x = {x}")
        yield f"x = {x}: no overflow"
    x, gy = np.array([[1000.0, 999.0], [-1000.0, -1001.0]]), np.array([1.0, 3.0])
    _is_softmax(student.run(gradient, x, gy), x, gy, f"x = {x.tolist()}")
    yield "rows 2000 apart: each row by itself"


def _is_softmax(got, x, gy, what):
    """Raises Wrong unless got is gy times the softmax of x over the last dimension."""
    if isinstance(got, str):
        raise Wrong(f"{what}: {got}. y and gy have shape {gy.shape}. To broadcast with x, they "
                    "need a last dimension of 1: y[..., None]")
    if got is None:
        raise Wrong(f"{what}: backward returned None; return the gradient of x")
    if got.shape != x.shape:
        raise Wrong(f"{what}: the gradient has shape {got.shape}; it needs the shape of x")
    wanted = np.asarray(gy)[..., None] * softmax(x)
    # exp of a difference of up to 1000 has an error of some roundings of 1e-16, times 1000.
    if np.allclose(got, wanted, rtol=1e-9, atol=1e-12):
        return
    if not np.isfinite(got).all():
        rows = x.reshape(-1, x.shape[-1])
        far = len(rows) > 1 and np.isfinite(got).any()
        raise Wrong(f"{what}: the gradient should be {wanted.round(6).tolist()}, got "
                    f"{got.tolist()}. exp(x) overflows above 709 and is 0 below -745. Take the "
                    "difference first: exp(x - ...)"
                    + (", with each row's own number, not one for all rows" if far else ""))
    sums = got.sum(-1)
    if np.allclose(sums, gy):
        raise Wrong(f"{what}: each row sums to gy, as it should. But its elements must be gy times "
                    "the softmax of the row")
    if np.allclose(got, softmax(x)):
        raise Wrong(f"{what}: the gradient sums to 1 in every row, not to gy. Is it multiplied by "
                    "gy?")
    y = np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1)) + x.max(-1)
    p = softmax(x)
    if np.allclose(got, np.asarray(gy)[..., None] * p * (1 - p)):
        raise Wrong(f"{what}: this is gy p (1 - p). It has the derivative of a softmax p. But the "
                    "derivative of log(sum(exp(x))) is the softmax p itself")
    if x.ndim > 1 and x.shape[0] == x.shape[1] and np.allclose(got, gy * np.exp(x - y)):
        raise Wrong(f"{what}: y and gy were broadcast along the wrong dimension. Give the "
                    "right rows their numbers: y[..., None], gy[..., None]")
    raise Wrong(f"{what}: the gradient sums to {np.round(sums, 4).tolist()} over the last "
                "dimension. It should be gy times the softmax over the last dimension. That sums "
                f"to {np.round(gy, 4).tolist()}. Do y and gy belong to the right rows: "
                "y[..., None]? Is every sum over axis -1?")


CASES = {
    "no tensor used twice": lambda x, y: minidl.tanh(x) * minidl.exp(y),
    "a leaf used twice": lambda x, y: x * y + minidl.tanh(x),
    "a leaf used three times": lambda x, y: x * x * x + y,
    "a result used twice": lambda x, y: _square(minidl.exp(x * y)) + y,
    "everything at once": lambda x, y: _square(_square(x * y) + x) * minidl.tanh(x + y) + y,
    # The backward of an addition gives the same array to both inputs.
    "sums of sums": lambda x, y: (x + y) + x,
}


def _square(a):
    return a * a


def gradients(module, what, by_library):
    """Returns [d loss / dx, d loss / dy]. A gradient that did not arrive is None."""
    x = minidl.Tensor(np.array([0.7, -1.1]), requires_grad=True)
    y = minidl.Tensor(np.array([-0.4, 0.3]), requires_grad=True)
    loss = CASES[what](x, y)
    if by_library:
        loss.backward(np.ones(2))
        return [x.grad.array, y.grad.array]
    found = module.backward(loss)
    return [None if found.get(leaf) is None else np.asarray(found[leaf]) for leaf in (x, y)]


def grade_01b(student):
    """backward adds the gradients that arrive at the same node or leaf."""
    for what in CASES:
        by_hand, by_library = student.run(gradients, what, False), gradients(None, what, True)
        for name, got, wanted in zip("xy", by_hand, by_library, strict=True):
            if got is None:
                raise Wrong(f"{what}: no gradient arrived at {name}. Did you keep it in "
                            "gradient[producer]?")
            # Another order of the additions changes some roundings of 1e-16.
            if got.shape != wanted.shape or (np.abs(got - wanted) > 1e-12 * np.abs(wanted)).any():
                said = _cause(what, got, wanted)
                raise Wrong(f"{what}: d loss / d{name} should be {wanted.round(6).tolist()}, got "
                            f"{got.round(6).tolist()}. {said}")
        yield what


def _cause(what, got, wanted):
    """Returns a sentence: which mistake gives the gradient `got`."""
    if what == "sums of sums":
        return ("(x + y) + x: an addition sends the same array to both of its inputs. If you "
                "change it in place (+=), the other input's gradient changes. Make a new array: "
                "gradient[producer] + gx")
    if np.allclose(2 * got, wanted):
        return "That is the mean of two gradients. Return their sum"
    if what == "no tensor used twice":
        return "Only one gradient arrives at each tensor here. It was added more than once"
    x, y = np.array([0.7, -1.1]), np.array([-0.4, 0.3])
    if what == "a leaf used twice" and any(np.allclose(got, one) for one in (y, 1 - np.tanh(x)**2)):
        return "Two gradients arrive at x, but only one is kept. Add them"
    return "Add every gradient that arrives, once and unchanged."


# {exercise: {name of the mistake: (the code of the region, words that its message must have)}}
WRONG = {
    "01a": {
        "no maximum subtracted": (
            """
e = np.exp(x)
return gy[..., None] * e / e.sum(axis=-1, keepdims=True)
""",
            "overflows above 709",
        ),
        "missing keepdims": (
            """
return gy[..., None] * np.exp(x - y)
""",
            "last dimension of 1",
        ),
        "broadcast along the wrong dimension": (
            """
return np.resize(gy, x.shape) * np.exp(x - np.resize(y, x.shape))
""",
            "right rows",
        ),
        "forgets gy": (
            """
return np.exp(x - y[..., None])
""",
            "multiplied by gy",
        ),
        "the gradient of max": (
            """
return gy[..., None] * (x == x.max(axis=-1, keepdims=True))
""",
            "sums to",
        ),
        "forgets to return": (
            """
gx = gy[..., None] * np.exp(x - y[..., None])
""",
            "returned None",
        ),
    },
    "01b": {
        "= instead of +=": (
            """
gradient[producer] = gx
""",
            "only one is kept",
        ),
        "keeps the first one": (
            """
gradient.setdefault(producer, gx)
""",
            "only one is kept",
        ),
        "adds in twice": (
            """
gradient[producer] = gradient.get(producer, gx) + gx
""",
            "added more than once",
        ),
        "under the function's name": (
            """
gradient[node] = gradient.get(node, 0) + gx
""",
            "",
        ),
    },
}
