"""Comparisons, logic, whole division: bool and integer results, no gradient, hence no graph.

    (x > 0) & ~minidl.isnan(x)        operands broadcast and are promoted as in arithmetic

Test: tests/ops/test_logic.py
"""

from minidl.function import Function
from minidl.ops.elementwise import binary, unary


class Plain(Function):
    """A function of NumPy (and CuPy) called `name`, without a gradient."""
    differentiable = False
    promotes = "same"

    def forward(self, *inputs, name):
        self.name = name
        return getattr(self.xp, name)(*inputs)


eq = binary("eq", Plain, "input == other.", name="equal")
ne = binary("ne", Plain, "input != other.", name="not_equal")
lt = binary("lt", Plain, "input < other.", name="less")
le = binary("le", Plain, "input <= other.", name="less_equal")
gt = binary("gt", Plain, "input > other.", name="greater")
ge = binary("ge", Plain, "input >= other.", name="greater_equal")

# The bitwise ones work bit by bit on integers, as `and`, `or`, `not` on bool; floats are an error.
bitwise_and = binary("bitwise_and", Plain, "input & other.", name="bitwise_and")
bitwise_or = binary("bitwise_or", Plain, "input | other.", name="bitwise_or")
bitwise_xor = binary("bitwise_xor", Plain, "input ^ other.", name="bitwise_xor")
bitwise_not = unary("bitwise_not", Plain, "~input.", name="invert")
# The logical ones take any dtype: what is not zero is true.
logical_and = binary("logical_and", Plain, "Both are not zero.", name="logical_and")
logical_or = binary("logical_or", Plain, "One of them is not zero.", name="logical_or")
logical_not = unary("logical_not", Plain, "It is zero.", name="logical_not")

floor_divide = binary("floor_divide", Plain, "input // other, rounded down.", name="floor_divide")
isnan = unary("isnan", Plain, "Whether the element is nan.", name="isnan")
isinf = unary("isinf", Plain, "Whether the element is inf or -inf.", name="isinf")
isfinite = unary("isfinite", Plain, "Whether the element is neither inf nor nan.", name="isfinite")
