"""Planted bugs in tensors, operators, layers, optimizers, precision, memory. See mutations.py."""

from tests.mutations import Mutation

MUTATIONS = [
    Mutation(
        "softmax's backward forgets that the outputs sum to one",
        "minidl/ops/softmax.py",
        "self.xp.subtract(gy, dot, out=gx)",
        "self.xp.subtract(gy, 0 * dot, out=gx)",
        "tests/ops/test_every_op.py::test_gradient_equals_central_differences[softmax-0]",
    ),
]
