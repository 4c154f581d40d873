"""Elementwise ops: y[i] depends on x[i] alone, so backward is gy times a local derivative.

Inputs broadcast as in NumPy; backward may return the broadcast gradient, the walk sums it back
to the input's shape. Integers become float32 where a float is needed, as in PyTorch. Activations
are in activations.py, comparisons and logic in logic.py.

Test: tests/ops/test_elementwise.py   Tutorial: tutorials/01_autograd.py
"""

from minidl import backend
from minidl.tensor import Function, Tensor


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
    """a * b. Saves the factor that the other one's gradient needs."""

    promotes = "same"

    def forward(self, a, b):
        self.save(a if self.needs[1] else None, b if self.needs[0] else None)
        return a * b

    def backward(self, gy):
        a, b = self.saved
        return (gy * b if self.needs[0] else None), (gy * a if self.needs[1] else None)


class Div(Function):
    """a / b, true division: integers give float32."""

    promotes = "float"

    def forward(self, a, b):
        self.save(a if self.needs[1] else None, b)
        return a / b

    def backward(self, gy):
        a, b = self.saved
        ga = gy / b
        return ga, (-ga * (a / b) if self.needs[1] else None)


class Neg(Function):
    """-x."""

    def forward(self, x):
        return -x

    def backward(self, gy):
        return -gy


class Pow(Function):
    """y = a ** b. Where b is 0 the slope in a is 0, where a is 0 the slope in b is 0 (for b >= 0),
    also at the points where the formula would say 0 * infinity."""

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
            else:  # a ** -1 is not formed where b is 0
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


class Exp(Function):
    """y = e^x. Saves y: dy/dx = y."""

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
    """sign, floor, ceil, round (half to even): constant between jumps, so the gradient is 0."""

    def forward(self, x, name):
        self.name = name
        if x.dtype.kind in "bui" and name != "sign":
            return x.copy()
        return getattr(self.xp, name)(x)

    def backward(self, gy):
        return self.xp.zeros_like(gy)


class Maximum(Function):
    """The larger of a and b, which gets the gradient; equal ones share it half and half."""

    promotes = "same"
    larger = True

    def forward(self, a, b):
        self.save(a, b)
        return (self.xp.maximum if self.larger else self.xp.minimum)(a, b)

    def backward(self, gy):
        a, b = self.saved
        loser_a, loser_b = (a < b, a > b) if self.larger else (a > b, a < b)
        gy = self.xp.where(a == b, gy * 0.5, gy)
        return gy * ~loser_a, gy * ~loser_b


class Minimum(Maximum):
    """The smaller of a and b; the rest as for Maximum."""

    larger = False


class Clamp(Function):
    """x between two numbers. The gradient passes where x is inside, bounds included."""

    def forward(self, x, min=None, max=None):
        bounds = [b for b in (min, max) if b is not None]
        if not bounds or any(isinstance(b, Tensor) or hasattr(b, "shape") for b in bounds):
            raise TypeError("clamp: wants a number for min, max or both; for tensors use maximum "
                            "and minimum")
        x = x.astype(backend.result_dtype([x, *bounds]), copy=False)
        if self.needs[0]:
            inside = True if min is None else x >= min
            self.save(inside if max is None else inside & (x <= max))
        return self.xp.clip(x, min, max)

    def backward(self, gy):
        (inside,) = self.saved
        return gy * inside


class Where(Function):
    """a where the condition holds, b elsewhere."""

    def forward(self, condition, a, b):
        if getattr(condition, "dtype", None) != bool:
            raise TypeError("where: the condition wants to be a bool tensor, got "
                            f"{getattr(condition, 'dtype', type(condition).__name__)}")
        dtype = backend.result_dtype([a, b])
        self.save(condition)
        return self.xp.where(condition, self.xp.asarray(a, dtype), self.xp.asarray(b, dtype))

    def backward(self, gy):
        (condition,) = self.saved
        return (None, self.xp.where(condition, gy, 0) if self.needs[1] else None,
                self.xp.where(condition, 0, gy) if self.needs[2] else None)


def add(input, other, *, alpha=1):
    """input + alpha * other."""
    return Add.apply(input, other if alpha == 1 else mul(other, alpha))


def sub(input, other, *, alpha=1):
    """input - alpha * other."""
    return Sub.apply(input, other if alpha == 1 else mul(other, alpha))


def mul(input, other):
    return Mul.apply(input, other)


def div(input, other):
    """input / other, true division."""
    return Div.apply(input, other)


def neg(input):
    return Neg.apply(input)


def pow(input, exponent):
    return Pow.apply(input, exponent)


def remainder(input, other):
    return Remainder.apply(input, other)


def exp(input):
    return Exp.apply(input)


def log(input):
    return Log.apply(input)


def sqrt(input):
    return Sqrt.apply(input)


def rsqrt(input):
    return Rsqrt.apply(input)


def sin(input):
    return Sin.apply(input)


def cos(input):
    return Cos.apply(input)


def abs(input):
    return Abs.apply(input)


def sign(input):
    return Step.apply(input, name="sign")


def floor(input):
    return Step.apply(input, name="floor")


def ceil(input):
    return Step.apply(input, name="ceil")


def round(input):
    """The nearest integer, halves to the even one."""
    return Step.apply(input, name="rint")


def maximum(input, other):
    return Maximum.apply(input, other)


def minimum(input, other):
    return Minimum.apply(input, other)


def clamp(input, min=None, max=None):
    return Clamp.apply(input, min=min, max=max)


def where(condition, input, other):
    """input where the bool tensor `condition` holds, other elsewhere; all three broadcast."""
    return Where.apply(condition, input, other)


def masked_fill(input, mask, value):
    """The number or 0-d tensor `value` where the bool tensor `mask` holds, else input; the dtype
    is the input's."""
    to_dtype = input.dtype.type
    return Where.apply(mask, value.to(input.dtype) if isinstance(value, Tensor)
                       else to_dtype(value), input)
