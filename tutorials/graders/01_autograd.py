"""Grades work/01_autograd.py.   Test: tests/tutorials/test_exercises.py"""

import numpy as np

import minidl
from minidl.exercise_grade import Wrong
from minidl.gradcheck import GradcheckError, gradcheck


def grade_01a(student):
    """LogSumExp.backward agrees with central differences in float64, for small and for huge x."""
    generator = minidl.Generator(11)
    # (5, 5) is square: y (5,) then broadcasts along the wrong dimension without an error
    for shape in ((7,), (3, 4), (5, 5), (2, 3, 1)):
        x = generator.normal(*shape, dtype=np.float64)
        _shape_and_sum(student, x)
        _agrees(student.LogSumExp.apply, x, f"x of shape {shape}")
        yield f"x of shape {shape}: every element, random cotangent"
    _agrees(
        lambda a: student.LogSumExp.apply(a) + student.LogSumExp.apply(a * a),
        generator.normal(3, 6, dtype=np.float64),
        "x used twice",
    )
    yield "x used twice"
    for x in ([1000.0, 0.0, 999.0], [-1000.0, -1001.0, -1000.5]):
        a = np.array(x)
        with np.errstate(all="ignore"):
            got = _gradient(student, a, np.array(1.0))
        wanted = np.exp(a - a.max()) / np.exp(a - a.max()).sum()
        if not np.allclose(
            got, wanted, rtol=1e-9, atol=1e-12
        ):  # exp(-1000 .. 0): a few roundings times 1000
            raise Wrong(
                f"x = {x}: the gradient should be {wanted.round(6).tolist()}, got {got.tolist()}. "
                "exp(x) "
                "overflows above 709 and is 0 below -745; take the difference first: exp(x - ...)"
            )
        yield f"x = {x}: no overflow"


def _gradient(student, x, gy):
    leaf = minidl.Tensor(x.copy(), requires_grad=True)
    student.LogSumExp.apply(leaf).backward(gy)
    return leaf.grad


def _shape_and_sum(student, x):
    """The gradient of logsumexp is a softmax: it sums to gy over the last dimension."""
    gy = np.arange(2.0, 2.0 + x[..., 0].size).reshape(x.shape[:-1])
    try:
        got = _gradient(student, x, gy)
    except ValueError as error:  # NumPy's: operands could not be broadcast together
        raise Wrong(
            f"x of shape {x.shape}: {error}. y and gy have shape {gy.shape}; they need a last "
            "dimension of 1 "
            "beside x: y[..., None]"
        ) from None
    if np.allclose(got.sum(-1), gy):
        return
    if np.allclose(got.sum(-1), 1):
        raise Wrong(
            f"x of shape {x.shape}: the gradient sums to 1 in every row, not to gy. Is it "
            "multiplied by gy?"
        )
    raise Wrong(
        f"x of shape {x.shape}: the gradient sums to {got.sum(-1).round(4).tolist()} over the last "
        "dimension; it "
        f"should be gy times a softmax, {gy.tolist()}. Do y and gy belong to the right rows: "
        "y[..., None]?"
    )


def _agrees(fn, x, what):
    try:
        gradcheck(fn, x)
    except GradcheckError as error:
        raise Wrong(f"{what}: {error}") from None


def grade_01b(student):
    """backward adds the gradients that meet at a node or a leaf."""
    for what, fn in {
        "no tensor used twice": lambda x, y: minidl.tanh(x) * minidl.exp(y),
        "a leaf used twice": lambda x, y: x * y + minidl.tanh(x),
        "a leaf used three times": lambda x, y: x * x * x + y,
        "a result used twice": lambda x, y: _square(minidl.exp(x * y)) + y,
        "everything at once": lambda x, y: _square(_square(x * y) + x) * minidl.tanh(x + y) + y,
    }.items():
        x = minidl.tensor(0.7, dtype=np.float64, requires_grad=True)
        y = minidl.tensor(-0.4, dtype=np.float64, requires_grad=True)
        by_hand = student.backward(fn(x, y))
        fn(x, y).backward()
        for name, leaf in (("x", x), ("y", y)):
            if leaf not in by_hand:
                raise Wrong(
                    f"{what}: no gradient arrived at {name}. Is it kept in gradient[producer]?"
                )
            got, wanted = float(by_hand[leaf]), float(leaf.grad)
            if abs(got - wanted) > 1e-12 * abs(
                wanted
            ):  # the order of additions: a few roundings of 1e-16
                raise Wrong(
                    f"{what}: d loss / d{name} should be {wanted:.6f}, got {got:.6f}. Every "
                    "gradient that "
                    "arrives must be in the sum, once."
                )
        yield what


def _square(a):
    return a * a


# {exercise: {name of the mistake: (what stands in the region, words of the message that it must
# get)}}
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
            "central differences say",
        ),
        "forgets to return": (
            """
gx = gy[..., None] * np.exp(x - y[..., None])
""",
            "",
        ),
    },
    "01b": {
        "= instead of +=": (
            """
gradient[producer] = gx
""",
            "must be in the sum",
        ),
        "keeps the first one": (
            """
gradient.setdefault(producer, gx)
""",
            "must be in the sum",
        ),
        "adds in twice": (
            """
gradient[producer] = gradient.get(producer, gx) + gx
""",
            "must be in the sum",
        ),
        "under the function's name": (
            """
gradient[node] = gradient.get(node, 0) + gx
""",
            "",
        ),
    },
}
