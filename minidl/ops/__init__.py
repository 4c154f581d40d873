"""THE operator table: every op, the file it is in, and where a user reaches it.

    homes   m: method of Tensor (x.exp())   t: function of minidl (minidl.exp(x))
            f: function of minidl.nn.functional (F.relu(x))

An op is a Function (forward and backward adjacent) plus a function with PyTorch's name, argument
order and defaults. To add one: write both in the file it belongs to, name it here, and give it a
row in tests/ops/samples.py: the tests then check its gradient and compare it with PyTorch.
"""

from minidl.ops import dropout, elementwise, embedding, loss, matmul, norm, reduce, softmax
from minidl.tensor import Tensor

TABLE = [  # (file, homes, names)
    (elementwise, "mt", "add mul exp"),
    (elementwise, "mtf", "tanh"),
    (reduce, "mt", "sum"),
    (matmul, "mt", "matmul"),
    (matmul, "f", "linear"),
    (softmax, "mtf", "softmax log_softmax"),
    (loss, "f", "cross_entropy nll_loss mse_loss l1_loss binary_cross_entropy_with_logits"),
    (norm, "f", "layer_norm rms_norm group_norm batch_norm"),
    (dropout, "f", "dropout"),
    (embedding, "f", "embedding"),
]

OPERATORS = {  # Python's operator -> op
    "__add__": elementwise.add,
    "__mul__": elementwise.mul,
    "__matmul__": matmul.matmul,
}
REFLECTED = {
    "__radd__": elementwise.add,
    "__rmul__": elementwise.mul,
    "__rmatmul__": matmul.matmul,
}


def namespace(home):
    """{name: function} of every op that has this home."""
    return {
        name: getattr(module, name)
        for module, homes, names in TABLE if home in homes
        for name in names.split()
    }


def _operator(op):
    """A binary operator of Tensor: NotImplemented for foreign types, so Python may ask them."""

    def method(self, other):
        return op(self, other)

    return method


def _reflected(op):
    def method(self, other):
        return op(other, self)

    return method


for _name, _op in namespace("m").items():
    setattr(Tensor, _name, _op)
for _name, _op in OPERATORS.items():
    setattr(Tensor, _name, _operator(_op))
for _name, _op in REFLECTED.items():
    setattr(Tensor, _name, _reflected(_op))
