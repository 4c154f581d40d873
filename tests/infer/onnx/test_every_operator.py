"""Every operator that is read: `make onnx` compares each with onnxruntime.

CASES has inputs for every row of the table. Each is read twice: with inputs that are known only
where they must be, and with all of them known.
"""

import functools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from minidl import infer
from minidl.infer.onnx.operator import Known, number_of, parameters
from minidl.infer.onnx.tables import TABLE
from tests.infer.models import array
from tests.infer.onnx.files import branch, close, file_of, has_peer, info, onnx, peer, tolerance

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # x / 0 is infinite
F4, F8, F2, I4, I8, U1, BOOL = "f4", "f8", "f2", "i4", "i8", "u1", "?"


def case(*xs, n=1, opset=None, **attributes):
    """One call of an operator. xs: arrays, or None for an input that is left out; n: how many
    results are asked for; opset: 21, or the first that has the operator, unless given."""
    return SimpleNamespace(xs=[x if x is None else np.asarray(x) for x in xs], n=n, opset=opset,
                           attributes=attributes)


def numbers(*xs, dtype=F4):
    return np.array(xs, dtype)


# ---- elements ----


def unary(dtypes, low=-math.inf, high=math.inf, **attributes):
    """Of several numbers, of one and of none. Floating numbers: also halves, infinities and NaN."""
    cases = []
    for dtype in dtypes:
        x = numbers(-9, -3, -2.5, -1, -.5, -.25, 0, .25, .5, 1, 1.5, 2.5, 3, 9, dtype=F8)
        if dtype == U1:
            x = abs(x)
        elif dtype in (F4, F8, F2):
            x = np.append(x, [math.inf, -math.inf, math.nan])
        x = x[(x >= low) & (x <= high) | np.isnan(x)].astype(dtype)
        cases += [case(v, **attributes) for v in (x, x[:4].reshape(2, 2), x[0], x[:0])]
    return cases


def binary(dtypes, least=-5, **attributes):
    """Whole numbers, so that some are equal: along each other, one of them alone, none."""
    cases = []
    for dtype in dtypes:
        x = (np.arange(12) * 5 % 11 - 5.0).reshape(3, 4)
        y = (np.arange(12) * 7 % 11 - 5.0).reshape(3, 4)
        x, y = (v.clip(0 if dtype == U1 else least).astype(dtype) for v in (x, y))
        cases += [case(*pair, **attributes) for pair in (
            (x, y), (x, y[0]), (x[:, :1], y[0]), (x[1, 1], y), (x, y[2, 2]), (x[:0], y[:1]))]
    return cases


FLOATS, WHOLE = (F4, F8, F2), (I4, I8, U1)
SIGNED = *FLOATS, I4, I8
ALL = *FLOATS, *WHOLE
X, IMAGE = array(2, 3, 4), array(2, 3, 7, 6)
SEVERAL = [case(array(2, 3)), case(array(2, 3), array(3, seed=1)),
           case(array(2, 3), array(2, 1, seed=1), array(3, seed=2)), case(array(0, 2), array(1, 2))]

ELEMENTS = {
    **{name: unary(FLOATS) for name in (
        "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "IsInf", "IsNaN",
        "LeakyRelu", "Mish", "Reciprocal", "Round", "Selu", "Sigmoid", "Sin", "Sinh", "Softplus",
        "Swish", "Tan", "Tanh", "ThresholdedRelu", "Elu", "Celu", "Gelu", "Asinh",
        "Atan")},
    **{name: unary(FLOATS, -1, 1) for name in ("Acos", "Asin", "Atanh")},
    "Softsign": unary([F4]), "Acosh": unary(FLOATS, 1),
    "Log": unary(FLOATS, 0), "Sqrt": unary(FLOATS, 0),
    "Abs": unary(ALL), "Sign": unary([F4, F8, *WHOLE]), "Neg": unary(SIGNED), "Relu": unary(SIGNED),
    "Not": unary([BOOL]), "BitwiseNot": unary(WHOLE), "Identity": unary([*ALL, BOOL]),
    **{name: binary(ALL) for name in (
        "Add", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mul", "Sub", "Max", "Min")},
    "Equal": binary([*ALL, BOOL]),
    **{name: binary([BOOL]) for name in ("And", "Or", "Xor")},
    **{name: binary(WHOLE) for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")},
    "Div": binary(FLOATS) + [case(v.xs[0], v.xs[1] * 2 + 1) for v in binary([I4, I8])],
    "Mod": [case(v.xs[0], v.xs[1] * 2 + 1) for v in binary([I4, I8])]
    + [case(v.xs[0], v.xs[1] * 2 + 1, fmod=1) for v in binary([F4, I8])],
    "BitShift": [case(v.xs[0], v.xs[1], direction=way) for v in binary([U1])
                 for way in ("LEFT", "RIGHT")],
    "Mean": SEVERAL, "Sum": SEVERAL,
    "Pow": [case(numbers(.5, 2, 3), numbers(2, .5, -1))]
    + [case(X, y) for y in (2.0, numbers(2), np.int64(3), array(4).round())]
    + [case(numbers(1, 2, -3, dtype=I8), y) for y in (
        numbers(2, 3, 2, dtype=I8), numbers(0.5, 2, 2), np.float32(2))],
    "Where": [case(array(1) > 0, *v.xs) for v in binary([F4, I8, U1])]
    + [case(array(3, 4) > 0, *v.xs) for v in binary([F4, I8])[:4]]
    + [case(True, numbers(1, 2), numbers(3, 4))],
    "Clip": [case(X), case(X, np.float32(-.5)), case(X, None, np.float32(.5)),
             case(X, np.float32(-.5), np.float32(.5)),
             case(numbers(1, 5, 9, dtype=I8), np.int64(2), np.int64(6)),
             case(X, opset=6, min=-0.5, max=0.25)],
    "PRelu": [case(X, array(4, seed=1)), case(X, array(3, 1, seed=1)), case(X, numbers(.2)),
              case(numbers(1, -2, dtype=I4), numbers(3, 4, dtype=I4))],
    "Cast": [case(x, to=number_of(to)) for x in (
        numbers(-2.7, -.5, 0, .5, 2.7), numbers(0, 1, 200, dtype=U1), X > 0, np.float64(1.5),
        numbers(3, -4, dtype=I8)) for to in ("f4", "f8", "f2", "i4", "i8", "?")],
    "CastLike": [case(x, np.zeros(1, to)) for x in (numbers(-2.7, 0, 2.7), X > 0)
                 for to in ("f4", "f8", "i4", "?")],
    "BitCast": [case(numbers(1, -2), to=number_of("i4")),
                case(numbers(3, dtype=I8), to=number_of("f8"))],
    "Shrink": unary([F4]) + unary([F4], lambd=1.2, bias=0.3) + unary([I4], lambd=1.0, bias=1.0),
    "Dropout": [case(X), case(X, np.float32(0.5)), case(X, None, np.array(False), n=2),
                case(X, opset=10, ratio=0.3)],
    "SwiGLU": [case(X, array(2, 3, 4, seed=1)), case(X, array(2, 3, 4, seed=1), alpha=1.7)],
    "Softmax": [case(X), case(X, axis=0), case(X, axis=1, opset=11), case(X, opset=11),
                case(X.astype(F8), axis=1), case(X[:, :0]), case(X.astype(F2))],
}
ELEMENTS["LogSoftmax"] = ELEMENTS["Softmax"]
ELEMENTS["IsInf"] += unary([F4], detect_negative=0) + unary([F4], detect_positive=0)
ELEMENTS["LeakyRelu"] += unary([F4], alpha=0.3)
ELEMENTS["Elu"] += unary([F4], alpha=0.7)
ELEMENTS["Celu"] = unary([F4]) + unary([F4], alpha=0.7)
ELEMENTS["Selu"] += unary([F4], alpha=1.2, gamma=0.8)
ELEMENTS["Swish"] += unary([F4], alpha=1.7)
ELEMENTS["HardSigmoid"] += unary([F4], alpha=0.3, beta=0.4)
ELEMENTS["ThresholdedRelu"] += unary([F4], alpha=0.3)
ELEMENTS["Gelu"] += unary([F4], approximate="tanh")

# ---- many numbers, one ----

AXES = [case(X), case(X, keepdims=0), case(X, numbers(1, dtype=I8)),
        case(X, numbers(-1, 0, dtype=I8), keepdims=0), case(X, noop_with_empty_axes=1),
        case(X[1, 1, 1]), case(X, axes=[1], opset=11), case(X.astype(F8), numbers(2, dtype=I8))]
WHOLE_AXES = [case((5 * X).astype(t), numbers(1, dtype=I8)) for t in (I4, I8)]
LABELS, ROWS = numbers(2, 0, 1, 2, dtype=I8), array(4, 3)
LOSSES = [case(ROWS, LABELS), case(ROWS, LABELS, reduction="sum"),
          case(ROWS, LABELS, numbers(.5, 1, 2)), case(ROWS, LABELS, ignore_index=2),
          case(ROWS, LABELS, numbers(.5, 1, 2), reduction="none", ignore_index=0),
          case(array(2, 3, 4), np.arange(8).reshape(2, 4) % 3)]
TIES = numbers(3, 1, 3, 2, 1, 1).reshape(2, 3)
PLACES = [case(TIES), case(TIES, axis=1), case(TIES, axis=-1, keepdims=0),
          case(TIES, axis=1, select_last_index=1), case(TIES.astype(I4), select_last_index=1)]
RUNNING = [case(x, np.array(axis), **how) for x in (X, (X * 5).astype(I4)) for axis in (0, -1)
           for how in ({}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1})]
REDUCTIONS = {
    **{f"Reduce{name}": AXES + (WHOLE_AXES if whole else []) for name, whole in (
        ("Sum", 1), ("Prod", 1), ("L1", 1), ("L2", 0), ("SumSquare", 1), ("LogSumExp", 0),
        ("Mean", 1), ("Max", 1), ("Min", 1))},
    "ReduceLogSum": [case(abs(v.xs[0]) + .5, *v.xs[1:], opset=v.opset, **v.attributes)
                     for v in AXES],
    "ArgMax": PLACES, "ArgMin": PLACES, "CumSum": RUNNING, "CumProd": RUNNING,
    "TopK": [case(TIES, numbers(2, dtype=I8), n=2), case(X, numbers(1, dtype=I8), n=2, axis=1),
             case(X, numbers(2, dtype=I8), n=2, largest=0),
             case(array(2, 5), numbers(5, dtype=I8), n=2, axis=-1)],
    "LpNormalization": [case(X), case(X, p=1), case(X, axis=1), case(np.zeros((2, 3), F4))],
    "NegativeLogLikelihoodLoss": LOSSES,
    "SoftmaxCrossEntropyLoss": LOSSES + [case(ROWS, LABELS, n=2)],
    "Einsum": [case(array(2, 3), array(3, 4), equation="ij,jk->ik"),
               case(array(2, 3, 3), equation="bii->bi"),
               case(array(3), array(4), equation="i, j -> ij"),
               case(array(2, 3, 4), array(2, 4, 5), equation="...ij,...jk->...ik")],
}

# ---- shapes, parts, indices ----

BACK = np.iinfo(np.int64).min


def i8(*xs):
    return numbers(*xs, dtype=I8)


PLACED = [case(array(3, 4), [[0, 2], [1, -1]], array(2, 2, seed=1), axis=axis)
          for axis in (0, 1)] + [case(np.zeros((2, 3), I8), i8([1]), i8([7]))]
WRITES = [{}, *({"reduction": how} for how in ("add", "mul", "max", "min"))]
ARRANGE = {
    "Constant": [case(value=onnx.numpy_helper.from_array(array(2, 3), "c")), case(value_float=1.5),
                 case(value_floats=[1.5, 2.0]), case(value_int=3), case(value_ints=[3, 4])],
    "ConstantOfShape": [case(i8(2, 3)), case(i8(2, 0)), case(i8(3), value=(
        onnx.numpy_helper.from_array(i8(7), "v")))],
    "Range": [case(np.int64(1), np.int64(10), np.int64(3)), case(np.float32(0), np.float32(-2),
                                                                 np.float32(-.5)),
              case(np.int32(3), np.int32(1), np.int32(1))],
    "Reshape": [case(X, i8(4, -1)), case(X, i8(0, 0, 2, 2)), case(X[:0], i8(3, 0), allowzero=1),
                case(X > 0, i8(-1)), case(X[0, 0, 0], i8(1, 1))],
    "Flatten": [case(X), case(X, axis=0), case(X, axis=2), case(X, axis=-1), case(X[:0])],
    "Squeeze": [case(array(1, 3, 1)), case(array(1, 3, 1), i8(0)), case(array(1, 3, 1), i8(-1, 0)),
                case(array(1, 3), opset=11, axes=[0])],
    "Unsqueeze": [case(X, i8(0)), case(X, i8(-1, 1)), case(X[0, 0, 0], i8(0)),
                  case(X, opset=11, axes=[1])],
    "Expand": [case(array(3, 1), i8(2, 1, 4)), case(array(3, 1), i8(1)), case(np.int64(2), i8(2)),
               case(array(2, 3) > 0, i8(2, 2, 3))],
    "Tile": [case(array(2, 3), i8(2, 1)), case(array(2, 3), i8(1, 0)), case(i8(1, 2), i8(3))],
    "Transpose": [case(X), case(X, perm=[1, 0, 2]), case(X > 0, perm=[2, 0, 1]), case(X[:0])],
    "Concat": [case(X, X[:1], axis=0), case(X, X[:, :1], X[:, :0], axis=1), case(X, axis=-1),
               case(i8(1), i8(2, 3), axis=0)],
    "Split": [case(X, i8(1, 3), axis=2, n=2), case(array(5, 2), n=2, num_outputs=2),
              case(X, n=3, axis=1, num_outputs=3), case(X, n=2, opset=11, axis=2, split=[3, 1])],
    "Slice": [case(X, i8(1), i8(3), i8(2)), case(X, i8(-1), i8(BACK), i8(2), i8(-1)),
              case(X, i8(0, 1), i8(99, -1)), case(X, i8(3, 0), i8(0, 2), i8(-1, 0), i8(-2, 1)),
              case(X, opset=9, starts=[1], ends=[3], axes=[1]), case(X, i8(2), i8(2), i8(1)),
              case(X, i8(0), i8(BACK), i8(2), i8(-2)), case(X, i8(-9), i8(-99), i8(1), i8(-1)),
              case(X[:, :0], i8(-1), i8(BACK), i8(1), i8(-1))],
    "Pad": [case(X, i8(0, 1, 2, 1, 0, 0)), case(X, i8(0, 1, 2, 1, 0, 0), np.float32(1.5)),
            case(X, i8(1, 1), np.float32(2), i8(2)), case(X, i8(0, 0, -1, 0, 0, 2)),
            case(i8(1, 2), i8(1, 1), np.int64(9)), case(X, opset=10, pads=[0] * 5 + [2], value=.5),
            *(case(X, i8(0, 1, 2, 1, 0, 0), mode=mode) for mode in ("reflect", "edge", "wrap"))],
    "DepthToSpace": [case(array(1, 8, 2, 3), blocksize=2, mode=mode) for mode in ("DCR", "CRD")],
    "SpaceToDepth": [case(array(2, 3, 4, 6), blocksize=2)],
    "Gather": [case(X, i8(1, 0, -1)), case(X, i8([1, 0], [2, 2]), axis=1), case(X, np.array(1)),
               case(X, np.array(-1), axis=-1), case(array(5, 3), i8(4, 0)), case(
                   array(5, 3), numbers(1, dtype=I4)), case(i8(3, 4, 5), np.array(2))],
    "GatherElements": [case(array(3, 3), i8([0, 1, 2], [2, -1, 0])),
                       case(array(3, 3), i8([0], [2], [1]), axis=1)],
    "GatherND": [case(X, i8([0, 1], [1, 2])), case(X, i8([0, 1, 2], [1, 2, -1])),
                 case(X, i8([[1]], [[2]]), batch_dims=1)],
    "Scatter": [case(*v.xs, opset=10, **v.attributes) for v in PLACED],
    "ScatterElements": PLACED + [case(array(3, 4), [[0, 0], [1, 1]], array(2, 2, seed=1), **how)
                                 for how in WRITES[1:]],
    "ScatterND": [case(X, i8([0, 1], [1, 2]), array(2, 4, seed=1), **how) for how in WRITES]
    + [case(array(4), i8([1], [1]), array(2, seed=1), reduction="add")],
    "OneHot": [case(i8(0, -1, 2), i8(3), numbers(0, 1)), case(i8([1], [5]), np.array(3), numbers(
        2, 7), axis=0), case(i8(1), i8(2), i8(4, 5), axis=1)],
    "Shape": [case(X), case(X, start=1), case(X, start=-2, end=-1), case(X[0, 0, 0])],
    "Size": [case(X), case(X[:0]), case(X[0, 0, 0])],
    "Trilu": [case(array(3, 4)), case(array(3, 4), np.array(1), upper=0), case(X, np.array(-1)),
              case(i8([1, 2], [3, 4]), upper=0)],
    "NonZero": [case(numbers(0, 3, 0, 4).reshape(2, 2)), case(X > 0), case(np.float32(2))],
}

# ---- layers ----

W, B4 = array(4, 3, 3, 2, seed=1), array(4, seed=2)
POOLS = [case(IMAGE, kernel_shape=[2, 3], **how) for how in (
    {}, {"strides": [2, 1]}, {"pads": [1, 0, 0, 1]}, {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    {"auto_pad": "SAME_LOWER"}, {"ceil_mode": 1, "strides": [2, 2]}, {"auto_pad": "VALID"})]
POOLS += [case(array(2, 3, 8), kernel_shape=[3], strides=[2])]
CONVS = [{}, {"strides": [2, 1]}, {"pads": [1, 0, 2, 1]}, {"dilations": [2, 1]},
         {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, {"auto_pad": "SAME_LOWER"},
         {"auto_pad": "VALID"}]
ONES, SHIFT = abs(array(3, seed=1)) + .5, array(3, seed=2)
Q = array(2, 4, 3, 8)
K2, V2 = array(2, 2, 5, 8, seed=1), array(2, 2, 5, 6, seed=2)
K4, V4 = array(2, 4, 5, 8, seed=1), array(2, 4, 5, 6, seed=2)
SQUARE = [array(2, 4, 5, 8, seed=i) for i in range(3)]
ANGLES = array(6, 4, seed=1), array(6, 4, seed=2)
LAYERS = {
    "MatMul": [case(array(2, 3), array(3, 4)), case(array(2, 1, 2, 3), array(5, 3, 4)),
               case(array(3), array(3, 4)), case(array(2, 3), array(3)), case(array(3), array(3)),
               case((5 * array(2, 3)).astype(I4), (5 * array(3, 4)).astype(I4))],
    "Gemm": [case(i8([1, 2], [3, 4]), i8([5, 6], [7, 8]), i8(1, 2)),
             case(array(2, 3), array(3, 4)), case(array(2, 3), array(4, 3), array(4), transB=1),
             case(array(3, 2), array(3, 4), array(2, 4), transA=1, alpha=.5, beta=2.0),
             case(array(2, 3), array(3, 4), array(1), beta=.5),
             case(array(2, 3), array(3, 4), array(2, 1))],
    "Conv": [case(IMAGE, W, B4, **how) for how in CONVS]
    + [case(IMAGE, array(4, 3, 1, 1), strides=[2, 2], auto_pad=how)
       for how in ("SAME_UPPER", "SAME_LOWER")]
    + [case(IMAGE, W), case(array(1, 4, 5, 5), array(6, 2, 3, 3), group=2),
       case(array(2, 3, 8), array(4, 3, 3), B4, strides=[2], pads=[1, 0])],
    "ConvTranspose": [case(array(2, 3, 4, 3), array(3, 4, 3, 2), b, **how) for b, how in (
        (None, {}), (B4, {"strides": [2, 2]}), (B4, {"pads": [1, 0, 0, 1], "strides": [2, 1]}),
        (B4, {"dilations": [2, 1]}), (B4, {"strides": [2, 2], "output_padding": [1, 1]}),
        (None, {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        (None, {"strides": [2, 2], "output_shape": [8, 7]}))]
    + [case(array(1, 4, 3, 3), array(4, 2, 2, 2), group=2),
       case(array(2, 3, 5), array(3, 4, 3), B4, strides=[2])],
    "MaxPool": POOLS + [case(IMAGE, kernel_shape=[2, 2], dilations=[2, 2]),
                        case(IMAGE, kernel_shape=[2, 3], n=2, strides=[2, 2]),
                        case(IMAGE, kernel_shape=[2, 3], n=2, storage_order=1)],
    "AveragePool": POOLS + [case(IMAGE, kernel_shape=[2, 3], pads=[1, 1, 0, 1],
                                 count_include_pad=1)],
    "GlobalAveragePool": [case(IMAGE), case(array(2, 3, 5))],
    "GlobalMaxPool": [case(IMAGE), case(array(2, 3, 5))],
    "BatchNormalization": [case(x, ONES, SHIFT, SHIFT + 1, ONES * 2, **how) for x in (
        IMAGE, array(4, 3), array(2, 3, 5)) for how in ({}, {"epsilon": .1})],
    "InstanceNormalization": [case(IMAGE, ONES, SHIFT), case(array(2, 3, 5), ONES, SHIFT,
                                                             epsilon=.1)],
    "GroupNormalization": [case(array(2, 4, 3, 3), B4, B4, num_groups=2),
                           case(array(2, 4, 3), array(2), array(2, seed=1), num_groups=2,
                                opset=20), case(array(2, 4, 3), B4, B4, num_groups=4, epsilon=.1)],
    "LayerNormalization": [case(X, array(4), array(4, seed=1)), case(X, array(4), n=3),
                           case(X, array(3, 4), array(3, 4, seed=1), axis=1, epsilon=.1),
                           case(X, array(1), axis=1), case(X, array(4), array(1), n=3, axis=-2)],
    "RMSNormalization": [case(X, array(4)), case(X, array(3, 4), axis=1, epsilon=.1),
                         case(X, array(1)), case(X, array(1), axis=1), case(X, array(4), axis=0)],
    "LRN": [case(IMAGE, size=3), case(IMAGE, size=1, alpha=.1, beta=.5, bias=2.0),
            case(array(1, 7, 2, 2), size=5, alpha=1.0)],
    "RotaryEmbedding": [
        case(array(2, 3, 6, 8), *ANGLES, np.arange(12).reshape(2, 6) % 5, interleaved=how)
        for how in (0, 1)] + [
        case(array(2, 6, 24), *ANGLES, np.arange(12).reshape(2, 6) % 5, num_heads=3),
        case(array(2, 3, 6, 10), *ANGLES, np.arange(12).reshape(2, 6) % 6, rotary_embedding_dim=8),
        case(array(2, 3, 6, 8), array(2, 6, 4, seed=1), array(2, 6, 4, seed=2))],
    "Attention": [
        case(Q, K4, V4), case(Q, K2, V2), case(Q, K4, V4, scale=.3), case(*SQUARE, is_causal=1),
        case(Q, K4, V4, softcap=2.0), case(Q, K4, V4, array(3, 5) > 0),
        case(Q, K4, V4, array(3, 5)),
        case(Q, K4, V4, array(2, 4, 3, 5), is_causal=1),
        case(Q, K2, V2, None, K2[:, :, :3], V2[:, :, :3], n=3),
        case(array(2, 3, 16), array(2, 5, 16, seed=1), array(2, 5, 12, seed=2), q_num_heads=4,
             kv_num_heads=4), *(case(Q, K4, V4, n=4, softcap=3.0, qk_matmul_output_mode=mode)
                                for mode in range(4)),
        case(Q, K4, V4, None, None, None, i8(5, 4), opset=24),
        case(Q, K4, V4, None, None, None, i8(5, 3), is_causal=1, opset=24),
        case(*(v.astype(F2) for v in SQUARE), softmax_precision=1),
        case(*SQUARE, is_causal=1, left_window_size=1, opset=25),
        case(*SQUARE, left_window_size=1, right_window_size=0, opset=25)],
}

# ---- images of other sizes ----

RAMP = array(1, 2, 5, 4)
WAYS = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]
RESIZE = {
    "Resize": [case(RAMP, None, numbers(1, 1, *scales), mode=mode,
                    coordinate_transformation_mode=way)
               for mode in ("nearest", "linear", "cubic") for way in WAYS
               for scales in ((2.0, 1.5), (.6, .5), (.2, .25))]
    + [case(RAMP, None, None, i8(1, 2, *sizes), mode=mode)
       for mode in ("nearest", "linear", "cubic") for sizes in ((8, 3), (1, 9))]
    + [case(RAMP, None, numbers(1, 1, .6, .5), mode=mode, antialias=1)
       for mode in ("linear", "cubic")]
    + [case(RAMP, None, numbers(1, 1, 1.7, .5), mode="cubic", cubic_coeff_a=-.5, exclude_outside=1),
       case(RAMP, None, numbers(2, .5), axes=[3, 2]),
       case(RAMP, numbers(0, 0, .2, .1, 1, 1, .9, 1.4), None, i8(1, 2, 3, 6), mode="linear",
            coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=9.0),
       *(case(RAMP, None, None, i8(7, 7), axes=[2, 3], keep_aspect_ratio_policy=how)
         for how in ("not_larger", "not_smaller")),
       *(case(RAMP, None, numbers(1, 1, 2, 1.5), nearest_mode=how)
         for how in ("round_prefer_ceil", "floor", "ceil"))],
    "Upsample": [case(RAMP, numbers(1, 1, 2, 3), opset=9, mode=mode)
                 for mode in ("nearest", "linear")],
}

# ---- recurrent ----


def recurrent(n_gates, states, batchwise=False, **attributes):
    """A layer of 3 over 4 steps, 2 samples of 5 numbers: alone, from states, backwards, both."""
    x, cases = array(4, 2, 5), []
    for direction, d in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
        w, r = array(d, 3 * n_gates, 5, seed=1), array(d, 3 * n_gates, 3, seed=2)
        b = array(d, 6 * n_gates, seed=3)
        start = [array(d, 2, 3, seed=4 + i) for i in range(states)]
        options = {"hidden_size": 3, "direction": direction, "n": 1 + states, **attributes}
        cases += [case(x, w, r, **options), case(x, w, r, b, None, *start, **options)]
        turned = [v.swapaxes(0, 1) for v in (x, *start)]  # of layout 1, samples are first
        cases += [case(turned[0], w, r, b, None, *turned[1:], layout=1, **options)] * batchwise
    return cases


RECURRENT = {
    "RNN": recurrent(1, 1, batchwise=True)
    + recurrent(1, 1, activations=["Relu", "Relu"])[4:],
    "LSTM": recurrent(4, 2),
    "GRU": recurrent(3, 1) + recurrent(3, 1, linear_before_reset=1)}

# ---- whole numbers ----


def bytes_(*shape, dtype=U1, seed=0):
    low, high = (0, 256) if dtype == U1 else (-128, 128)
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


S, Z = np.float32(.04), np.uint8(120)
QUANTIZED = {
    "QuantizeLinear": [case(X, S, Z), case(X, S), case(X, numbers(.1, .2, .3), bytes_(3), axis=1),
                       case(X, S, np.int8(-5)), case(100 * X, S, Z),
                       case(X, array(2, 3, 2) ** 2 + .1, bytes_(2, 3, 2), axis=2, block_size=2)],
    "DequantizeLinear": [case(bytes_(2, 3, 4), S, Z), case(bytes_(2, 3, 4), S),
                         case(bytes_(2, 3, 4), numbers(.1, .2, .3), bytes_(3), axis=1),
                         case(bytes_(4, dtype="i1"), S, np.int8(3)), case(
                             numbers(5, -70000, dtype=I4), S),
                         case(bytes_(2, 4), array(2, 2), bytes_(2, 2), axis=1, block_size=2)],
    "DynamicQuantizeLinear": [case(X, n=3), case(abs(X), n=3), case(-abs(X) - 1, n=3)],
    "MatMulInteger": [case(bytes_(2, 3), bytes_(3, 4, dtype=t), *zeros) for t in (U1, "i1")
                      for zeros in ((), (Z,), (Z, np.array(7, t)))],
    "QLinearMatMul": [case(bytes_(2, 3), S, Z, bytes_(3, 4, seed=1), S, Z, np.float32(.5), Z),
                      case(bytes_(2, 3), S, Z, bytes_(3, 4, dtype="i1"), numbers(.1, .2, .3, .4),
                           bytes_(4, dtype="i1") * 0, np.float32(.9), Z)],
    "ConvInteger": [case(bytes_(1, 2, 5, 5), bytes_(3, 2, 3, 3), *zeros, **how)
                    for zeros in ((), (Z,), (Z, Z)) for how in ({}, {"pads": [1, 1, 0, 1]})]
    + [case(bytes_(1, 4, 5, 5), bytes_(4, 2, 3, 3), Z, group=2, strides=[2, 2])],
    "QLinearConv": [case(bytes_(1, 2, 5, 5), S, Z, w, sw, zw, np.float32(.9), Z, *b, **how)
                    for w, sw, zw in ((bytes_(3, 2, 3, 3), S, Z), (
                        bytes_(3, 2, 3, 3, dtype="i1"), numbers(.01, .02, .03),
                        np.zeros(3, "i1")))
                    for b, how in (((), {}), ((numbers(50, -90, 7, dtype=I4),), {
                        "pads": [1, 1, 0, 1], "strides": [2, 1]}))],
}

# ---- graphs inside of graphs ----


def body():
    """s + i, while i < 3; and s, which is collected."""
    return onnx.helper.make_graph(
        [onnx.helper.make_node("Cast", ["i"], ["f"], to=1),
         onnx.helper.make_node("Add", ["s", "f"], ["t"]),
         onnx.helper.make_node("Less", ["i", "three"], ["more"]),
         onnx.helper.make_node("Identity", ["s"], ["seen"])], "body",
        [info("i", I8, []), info("c", BOOL, []), info("s", F4, [2])],
        [info("more", BOOL, []), info("t", F4, [2]), info("seen", F4, [2])],
        [onnx.numpy_helper.from_array(np.int64(3), "three")])


CONTROL = {
    "If": [case(numbers(1, 2), which, then_branch=branch("Add", 5), else_branch=branch("Mul", 7))
           for which in (True, False)],
    "Loop": [case(limit, True, array(2), n=2, body=body())
             for limit in (np.int64(2), np.int64(9), None)]}
CASES = {**ELEMENTS, **REDUCTIONS, **ARRANGE, **LAYERS, **RESIZE, **RECURRENT, **QUANTIZED,
         **CONTROL}


def test_every_operator_has_a_case():
    new, gone = sorted(TABLE.keys() - CASES.keys()), sorted(CASES.keys() - TABLE.keys())
    assert not new, (f"give {new} rows in tests/infer/onnx/test_every_operator.py: case(inputs, "
                     "attributes) in ELEMENTS, REDUCTIONS, ... `make onnx` compares the results "
                     "with onnxruntime")
    assert not gone, f"{gone} in CASES: minidl reads no such operator"


@functools.cache
def first_version(name):
    return min(s.since_version for s in onnx.defs.get_all_schemas_with_history()
               if s.name == name and not s.domain)


def file_and_feed(name, one):
    names = ["" if x is None else f"x{i}" for i, x in enumerate(one.xs)]
    feed = {k: x for k, x in zip(names, one.xs) if k}
    outs = [f"y{i}" for i in range(one.n)]
    opset = one.opset or max(21, first_version(name))
    ins = names[1:] if name == "If" else names  # its branches take x0 from outside
    return file_of([(name, ins, outs, one.attributes)], feed, outputs=outs, opset=opset), feed


@pytest.mark.skipif(not has_peer(), reason="onnxruntime: make onnx")
@pytest.mark.parametrize("name", sorted(TABLE))
def test_it_gives_what_onnxruntime_does(name):
    wanted_inputs, _ = parameters(TABLE[name])
    at = [int(p.annotation is Known) for p in wanted_inputs]
    at = [0, *at] if name == "If" else at
    for one in CASES[name]:
        file, feed = file_and_feed(name, one)
        must = [k for k, known in zip([f"x{i}" for i in range(len(one.xs))], at) if known]
        for known in {k: feed[k] for k in must if k in feed}, feed:
            graph = infer.import_onnx(file, known)
            results = graph.run(*(feed[v.name] for v in graph.inputs))
            results = (results,) if graph.single else results
            told(file, results)
            about = f"{name} {[(v.shape, v.dtype.str) for v in feed.values()]} {one.attributes}"
            dtype = "f2" if any(v.dtype == F2 for v in feed.values()) else "f4"
            close(results, peer(file, feed), about=about, **tolerance(dtype))


def told(file, results):
    """The file's results have these dtypes: onnxruntime refuses others."""
    for out, y in zip(file.graph.output, results, strict=True):
        out.type.tensor_type.elem_type = number_of(y.dtype)
        out.type.tensor_type.ClearField("shape")
