"""Comparisons, logic and integer division. They have no gradient, so no graph records them.

    (x > 0) & ~minidl.isnan(x)        operands broadcast and are promoted as in arithmetic

Test: tests/ops/test_logic.py
"""

from minidl.function import Function
from minidl.ops.elementwise import binary, unary


class Plain(Function):
    """Calls the function `name` of NumPy or CuPy. The result has no gradient."""
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

# On integers the bitwise ops work bit by bit. On bool they are the logical "and", "or", "xor" and
# "not". Floats raise an error.
bitwise_and = binary("bitwise_and", Plain, "input & other.", name="bitwise_and")
bitwise_or = binary("bitwise_or", Plain, "input | other.", name="bitwise_or")
bitwise_xor = binary("bitwise_xor", Plain, "input ^ other.", name="bitwise_xor")
bitwise_not = unary("bitwise_not", Plain, "~input.", name="invert")
# The logical ops take any dtype. Elements that are not zero count as true.
logical_and = binary("logical_and", Plain, "True where both elements are not zero.",
                     name="logical_and")
logical_or = binary("logical_or", Plain, "True where at least one element is not zero.",
                    name="logical_or")
logical_not = unary("logical_not", Plain, "True where the element is zero.", name="logical_not")

floor_divide = binary("floor_divide", Plain, "input // other, rounded down.", name="floor_divide")
isnan = unary("isnan", Plain, "True where the element is nan.", name="isnan")
isinf = unary("isinf", Plain, "True where the element is inf or -inf.", name="isinf")
isfinite = unary("isfinite", Plain, "True where the element is finite.", name="isfinite")
