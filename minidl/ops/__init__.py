"""The table of all ops: for each op its file, and how a user calls it.

    homes   the letters of an op. Each letter is a way to call the op:
            m: method of Tensor (x.exp())   t: function of minidl (minidl.exp(x))
            f: function of minidl.nn.functional (F.relu(x))

An op has two parts: a Function, which has forward and backward, and a Python function that users
call. The Python function has PyTorch's name, argument order and defaults. To add an op:
docs/changing.md, "A new op".
"""

import functools

import numpy as np

from minidl.ops import (
    activations, attention, batch_norm, cast, conv, convert, cross_entropy, dropout, elementwise,
    embedding, extreme, gelu, index, inplace, layer_norm, linear, logic, loss, matmul, norm, pool,
    products, reduce, select, shape, softmax,
)
from minidl.ops.extra import activations as more_activations
from minidl.ops.extra import (
    columns, composed, conv_transpose, distance, einsum, embedding_bag, in_place_forms,
    instance_norm, interpolate, rearrange, recurrent, sampling, scatter, search, sort, unary,
)
from minidl.tensor import Tensor

TABLE = [  # (file, letters of the ops, names of the ops)
    (elementwise, "mt", "add sub mul div remainder fmod neg pow exp log sqrt rsqrt sin cos"),
    (elementwise, "mt", "abs sign floor ceil round"),
    (select, "mt", "maximum minimum clamp masked_fill"),
    (select, "t", "where"),
    (activations, "mtf", "relu sigmoid tanh"),
    (activations, "f", "leaky_relu elu silu softplus"),
    (gelu, "f", "gelu"),
    (logic, "mt", "eq ne lt le gt ge bitwise_and bitwise_or bitwise_xor bitwise_not"),
    (logic, "mt", "logical_and logical_or logical_not isnan isinf isfinite floor_divide"),
    (reduce, "mt", "sum mean var std prod cumsum logsumexp any all"),
    (extreme, "mt", "max min amax amin argmax argmin"),
    (shape, "mt", "reshape flatten squeeze unsqueeze permute transpose swapaxes t broadcast_to"),
    (shape, "mt", "split chunk unbind flip"),
    (shape, "m", "view expand repeat"),
    (shape, "t", "cat stack"),
    (index, "mt", "gather index_select tril triu"),
    (cast, "mt", "clone"),
    (inplace, "m", "copy_ zero_ fill_"),
    (convert, "m", "numpy item tolist size dim is_contiguous element_size"),
    (cast, "m", "to type contiguous cpu cuda half float double int long bool"),
    (matmul, "mt", "matmul"),
    (linear, "f", "linear"),
    (products, "mt", "bmm dot outer"),
    (softmax, "mtf", "softmax log_softmax"),
    (cross_entropy, "f", "cross_entropy nll_loss"),
    (loss, "f", "mse_loss l1_loss binary_cross_entropy binary_cross_entropy_with_logits"),
    (loss, "f", "smooth_l1_loss huber_loss kl_div"),
    (layer_norm, "f", "layer_norm rms_norm"),
    (norm, "f", "group_norm"),
    (batch_norm, "f", "batch_norm"),
    (dropout, "f", "dropout"),
    (embedding, "f", "embedding"),
    (attention, "f", "scaled_dot_product_attention self_attention"),
    (conv, "tf", "conv1d conv2d"),
    (pool, "f", "max_pool1d max_pool2d avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d"),
    # the files in ops/extra/
    (sort, "mt", "sort argsort topk kthvalue median"),
    (search, "mt", "nonzero unique bincount isclose allclose"),
    (search, "t", "searchsorted bucketize"),
    (search, "f", "one_hot"),
    (scatter, "mt", "scatter scatter_add index_add index_copy index_fill masked_select"),
    (scatter, "mt", "scatter_reduce"),
    (rearrange, "mt", "roll diagonal repeat_interleave"),
    (rearrange, "f", "pad"),
    (rearrange, "t", "meshgrid"),
    (einsum, "t", "einsum"),
    (unary, "mt", "erf expm1 exp2 log1p log2 log10 tan asin acos atan sinh cosh reciprocal square"),
    (distance, "mt", "norm"),
    (distance, "f", "normalize cosine_similarity pairwise_distance"),
    (sampling, "mt", "bernoulli multinomial"),
    (more_activations, "f", "mish selu prelu glu"),
    (interpolate, "f", "interpolate"),
    (conv_transpose, "tf", "conv_transpose1d conv_transpose2d"),
    (embedding_bag, "f", "embedding_bag"),
    (instance_norm, "f", "instance_norm"),
    (in_place_forms, "m", in_place_forms.NAMES),
    (composed, "mt", "mm mv addmm clip cumprod trunc lerp nan_to_num flipud fliplr movedim"),
    (composed, "mt", "unflatten narrow diff argwhere equal is_floating_point"),
    (composed, "t", "tensordot concat hstack vstack"),
    (composed, "m", "unfold expand_as view_as type_as new_zeros new_ones"),
    (composed, "f", "hardtanh relu6 hardsigmoid hardswish softsign logsigmoid celu softmin"),
    (composed, "f", "threshold pixel_shuffle gumbel_softmax dropout2d triplet_margin_loss"),
    (columns, "f", "unfold fold"),
    (recurrent, "f", "rnn_sequence lstm_sequence gru_sequence"),
]

# The op of each Python operator. Frequent operators use `apply` of the Function, which saves a
# function call. All operators have a reflected form, such as __radd__.
BINARY = {
    "add": elementwise.Add.apply, "sub": elementwise.Sub.apply, "mul": elementwise.Mul.apply,
    "truediv": elementwise.Div.apply, "floordiv": logic.floor_divide, "mod": elementwise.remainder,
    "pow": elementwise.pow, "matmul": matmul.matmul,
    "and": logic.bitwise_and, "or": logic.bitwise_or, "xor": logic.bitwise_xor,
}
COMPARISONS = {"eq": logic.eq, "ne": logic.ne, "lt": logic.lt, "le": logic.le, "gt": logic.gt,
               "ge": logic.ge}
# In `array * tensor` NumPy calls a ufunc. The op runs instead of the ufunc, so that the graph
# records the operation.
convert.OF_UFUNC.update({
    "add": BINARY["add"], "subtract": BINARY["sub"], "multiply": BINARY["mul"],
    "divide": BINARY["truediv"], "floor_divide": BINARY["floordiv"], "remainder": BINARY["mod"],
    "power": BINARY["pow"], "matmul": BINARY["matmul"], "bitwise_and": BINARY["and"],
    "bitwise_or": BINARY["or"], "bitwise_xor": BINARY["xor"], "equal": logic.eq,
    "not_equal": logic.ne, "less": logic.lt, "less_equal": logic.le, "greater": logic.gt,
    "greater_equal": logic.ge,
})
UNARY = {
    "__neg__": elementwise.neg, "__abs__": elementwise.abs, "__invert__": logic.bitwise_not,
    "__getitem__": index.getitem, **inplace.OPERATORS, **convert.OPERATORS,
}
PROPERTIES = {"T": shape.t, "mT": shape.matrix_transpose}
OPERANDS = (Tensor, int, float, np.ndarray, np.generic)


# Some ops also take NumPy's names of two arguments, as in PyTorch: x.sum(axis=0, keepdims=True).
WITH_AXIS = frozenset("sum mean var std prod any all max min amax amin argmax argmin cumsum norm "
                      "logsumexp squeeze unsqueeze flip cat stack concat "
                      "split chunk unbind sort argsort topk".split())


def namespace(home):
    """home: "m", "t" or "f". Returns a dict {name: function} of all ops that have this letter in
    TABLE."""
    found = {name: getattr(module, name)
             for module, homes, names in TABLE if home in homes for name in names.split()}
    if home == "f":
        return found
    return {name: _with_axis(op) if name in WITH_AXIS else op for name, op in found.items()}


@functools.cache  # so that minidl.sum and Tensor.sum are the same function
def _with_axis(op):
    """Returns a function that calls the op. The function also takes the argument names `axis` (in
    place of `dim`) and `keepdims` (in place of `keepdim`)."""
    other = {"axis": "dims" if op.__name__ == "flip" else "dim", "keepdims": "keepdim"}

    @functools.wraps(op)
    def call(*args, **options):
        if options:
            options = {other.get(name, name): value for name, value in options.items()}
        return op(*args, **options)

    return call


def _operator(op, reflected=False):
    """Returns a method of Tensor for a binary operator. If the type of the other operand is
    unknown, the method returns NotImplemented. Python then calls the other operand's method.
    reflected: True for methods such as __radd__."""

    def method(self, other):
        if type(other) is not Tensor and not isinstance(other, OPERANDS):
            if not hasattr(other, "__cuda_array_interface__"):
                return NotImplemented
        return op(other, self) if reflected else op(self, other)

    return method


for _name, _op in (namespace("m") | UNARY).items():
    setattr(Tensor, _name, _op)
for _name, _op in PROPERTIES.items():
    setattr(Tensor, _name, property(_op))
for _name, _op in (BINARY | COMPARISONS).items():
    setattr(Tensor, f"__{_name}__", _operator(_op))
for _name, _op in BINARY.items():
    setattr(Tensor, f"__r{_name}__", _operator(_op, reflected=True))
