"""Elementwise ops: y[i] depends only on x[i], so backward is gy times a local derivative.

Inputs broadcast as in NumPy. backward may return the gradient in the broadcast shape. The backward
walk then sums it to the shape of the input. Integers become float32 if the op needs floats, as in
PyTorch.
See also activations.py, select.py (maximum, clamp, where) and logic.py (comparisons).
Test: tests/ops/test_elementwise.py   Tutorial: tutorials/01_autograd.py
"""

from minidl.function import Function


class Add(Function):
    """a + b."""
    promotes = "same"

    def forward(self, a, b):
        return a + b

    def backward(self, gy):
        return gy, gy


class Sub(Function):
    """a - b."""
    promotes = "same"

    def forward(self, a, b):
        return a - b

    def backward(self, gy):
        return gy, (-gy if self.needs[1] else None)


class Mul(Function):
    """a * b. Saves `b` if `a` needs a gradient. Saves `a` if `b` needs a gradient."""
    promotes = "same"

    def forward(self, a, b):
        self.save(a if self.needs[1] else None, b if self.needs[0] else None)
        return a * b

    def backward(self, gy):
        a, b = self.saved
        return (gy * b if self.needs[0] else None), (gy * a if self.needs[1] else None)


class Div(Function):
    """a / b, true division. Integers give float32."""
    promotes = "float"

    def forward(self, a, b):
        self.save(a if self.needs[1] else None, b)
        return a / b

    def backward(self, gy):
        a, b = self.saved
        ga = gy / b
        return ga, (-ga * (a / b) if self.needs[1] else None)


class RoundedDiv(Function):
    """a / b, rounded. The result is constant between jumps, so a and b get no gradient."""
    promotes = "same"

    def forward(self, a, b, mode):
        if mode not in ("floor", "trunc"):
            raise ValueError(f"div: rounding_mode must be None, 'floor' or 'trunc'; got {mode!r}")
        down = self.xp.floor_divide(a, b)
        if mode == "floor":
            return down
        if down.dtype.kind == "f":
            return self.xp.trunc(a / b)
        return down + ((down < 0) & (down * b != a)).astype(down.dtype)

    def backward(self, gy):
        return None, None


class Neg(Function):
    """-x."""

    def forward(self, x):
        return -x

    def backward(self, gy):
        return -gy


class Pow(Function):
    """y = a ** b. If b is 0, dy/da is 0. If a is 0 and b >= 0, dy/db is 0. These rules also apply
    where the formula of the derivative gives 0 * infinity."""
    precision = "black"
    promotes = "same"

    def forward(self, a, b):
        y = a**b
        self.save(a, b, y if self.needs[1] else None)
        return y

    def backward(self, gy):
        a, b, y = self.saved
        xp = self.xp
        ga = gb = None
        if self.needs[0]:
            if isinstance(b, (int, float)):
                ga = gy * (b * a ** (b - 1)) if b else xp.zeros_like(gy)
            else:  # avoids a ** -1 where b is 0
                ga = gy * (b * a ** xp.where(b == 0, b, b - 1))
        if self.needs[1]:
            a = xp.asarray(a, y.dtype)
            zero = (a == 0) & (xp.asarray(b) >= 0)
            gb = gy * y * xp.log(xp.where(zero, a.dtype.type(1), a))
        return ga, gb


class Remainder(Function):
    """a - b * floor(a / b), which has the sign of b."""
    promotes = "same"

    def forward(self, a, b):
        self.save(a, b)
        return a % b

    def backward(self, gy):
        a, b = self.saved
        return gy, (-gy * (a // b) if self.needs[1] else None)


class Fmod(Remainder):
    """a - b * trunc(a / b), which has the sign of a."""

    def forward(self, a, b):
        self.save(a, b)
        return self.xp.fmod(a, b)

    def backward(self, gy):
        a, b = self.saved
        return gy, (-gy * self.xp.trunc(a / b) if self.needs[1] else None)


class Exp(Function):
    """y = e^x. Saves y: dy/dx = y."""
    precision = "black"
    promotes = "float"

    def forward(self, x):
        y = self.xp.exp(x)
        self.save(y)
        return y

    def backward(self, gy):
        (y,) = self.saved
        return gy * y


class Log(Function):
    """The natural logarithm."""
    precision = "black"
    promotes = "float"

    def forward(self, x):
        self.save(x)
        return self.xp.log(x)

    def backward(self, gy):
        (x,) = self.saved
        return gy / x


class Sqrt(Function):
    """y = x^(1/2). Saves y: dy/dx = 1 / 2y."""
    promotes = "float"

    def forward(self, x):
        y = self.xp.sqrt(x)
        self.save(y)
        return y

    def backward(self, gy):
        (y,) = self.saved
        return gy / (2 * y)


class Rsqrt(Function):
    """y = x^(-1/2). Saves y: dy/dx = -y^3 / 2."""
    precision = "black"
    promotes = "float"

    def forward(self, x):
        y = 1 / self.xp.sqrt(x)
        self.save(y)
        return y

    def backward(self, gy):
        (y,) = self.saved
        return gy * (y * y * y * -0.5)


class Sin(Function):
    """The sine of x in radians."""
    promotes = "float"

    def forward(self, x):
        self.save(x)
        return self.xp.sin(x)

    def backward(self, gy):
        (x,) = self.saved
        return gy * self.xp.cos(x)


class Cos(Function):
    """The cosine of x in radians."""
    promotes = "float"

    def forward(self, x):
        self.save(x)
        return self.xp.cos(x)

    def backward(self, gy):
        (x,) = self.saved
        return -gy * self.xp.sin(x)


class Abs(Function):
    """|x|, with slope 0 at 0."""

    def forward(self, x):
        self.save(x)
        return self.xp.abs(x)

    def backward(self, gy):
        (x,) = self.saved
        return gy * self.xp.sign(x)


class Step(Function):
    """sign, floor, ceil or rint. The function is constant between jumps, so the gradient is 0."""

    def forward(self, x, name):
        self.name = name
        if x.dtype.kind == "b" or x.dtype.kind in "ui" and name != "sign":
            return x.copy()
        return getattr(self.xp, name)(x)

    def backward(self, gy):
        return self.xp.zeros_like(gy)


def add(input, other, *, alpha=1):
    """input + alpha * other."""
    return Add.apply(input, other if alpha == 1 else mul(other, alpha))


def sub(input, other, *, alpha=1):
    """input - alpha * other."""
    return Sub.apply(input, other if alpha == 1 else mul(other, alpha))


def div(input, other, *, rounding_mode=None):
    """input / other. rounding_mode: None, "floor" (rounds down) or "trunc" (rounds towards
    zero)."""
    if rounding_mode is None:
        return Div.apply(input, other)
    return RoundedDiv.apply(input, other, mode=rounding_mode)


def round(input, *, decimals=0):
    """Rounds to the nearest integer. decimals: rounds to this number of digits after the decimal
    point instead. If decimals is negative, rounds to tens, hundreds, and so on. Halves are rounded
    to the nearest even number."""
    if not decimals:
        return Step.apply(input, name="rint")
    ten = 10.0 ** (decimals if decimals > 0 else -decimals)
    if decimals > 0:
        return div(Step.apply(mul(input, ten), name="rint"), ten)
    return mul(Step.apply(div(input, ten), name="rint"), ten)


def pow(input, exponent):
    return Pow.apply(input, exponent)


def unary(name, function, doc=None, /, **options):
    """Returns the op `name`, a function of one argument that calls `function.apply`. doc: the
    docstring of the op. The default is the docstring of the Function."""
    def op(input):
        return function.apply(input, **options)
    op.__name__ = op.__qualname__ = name
    op.__module__, op.__doc__ = function.__module__, doc or function.__doc__
    return op


def binary(name, function, doc=None, /, **options):
    """Returns the op `name`, a function of two arguments that calls `function.apply`. doc: as in
    `unary`."""
    def op(input, other):
        return function.apply(input, other, **options)
    op.__name__ = op.__qualname__ = name
    op.__module__, op.__doc__ = function.__module__, doc or function.__doc__
    return op


mul, remainder = binary("mul", Mul), binary("remainder", Remainder)
fmod = binary("fmod", Fmod)
neg, abs = unary("neg", Neg), unary("abs", Abs)
exp, log = unary("exp", Exp), unary("log", Log)
sqrt, rsqrt = unary("sqrt", Sqrt), unary("rsqrt", Rsqrt)
sin, cos = unary("sin", Sin), unary("cos", Cos)
sign = unary("sign", Step, "The sign of the element: 1, 0 or -1.", name="sign")
floor = unary("floor", Step, "The largest integer <= the element.", name="floor")
ceil = unary("ceil", Step, "The smallest integer >= the element.", name="ceil")
