"""tinygrad's tests of its operators, with minidl in tinygrad's place.

tinygrad 0.12 is the last release whose sdist has test/test_ops.py. That file compares each op, its
values and its gradients, with PyTorch. Here `from tinygrad import Tensor` gives it the class below:
a minidl Tensor under tinygrad's names. Most names are PyTorch's, so they are looked up in minidl;
the methods below are those whose names, arguments or defaults are tinygrad's own.

Every comparison is a case. What has no place in minidl, or what minidl refuses with an error, is
not mapped; a comparison that fails is wrong.
"""

import contextlib
import importlib.util
import sys
import types
import unittest
from unittest import mock

import ml_dtypes
import numpy as np
import torch  # noqa: F401  it stays loaded when the stand-in leaves

import minidl
from minidl.nn import functional as F
from tests.peers.sdist import unpacked

VERSION = "0.12.0"
DTYPES = {name: np.dtype(name) for name in (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64").split()}
DTYPES |= {"half": DTYPES["float16"], "float": DTYPES["float32"], "double": DTYPES["float64"],
           "int": DTYPES["int32"], "long": DTYPES["int64"], "short": DTYPES["int16"],
           "char": DTYPES["int8"], "uchar": DTYPES["uint8"], "uint": DTYPES["uint32"],
           "ulong": DTYPES["uint64"], "ushort": DTYPES["uint16"],
           "bfloat16": np.dtype(ml_dtypes.bfloat16), "default_float": DTYPES["float32"],
           "default_int": DTYPES["int32"]}
DEFAULTS = {DTYPES["int64"]: DTYPES["int32"], DTYPES["float64"]: DTYPES["float32"]}
REFUSALS = ValueError, TypeError, IndexError, RuntimeError, NotImplementedError, AssertionError
# Tests that PyTorch itself would fail, which has no part in them.
TINYGRADS = {
    "test_sigmoid_alt_extreme": "exp(x) / (1 + exp(x)) of 300 is a number, by algebra on the graph",
    "test_pad_circular_mode": "the class of an error",
}


class NotMapped(Exception):
    """minidl has no such thing. This is none of REFUSALS."""


def bare(x):
    """Returns x with minidl's Tensors in the place of ours."""
    if isinstance(x, Tensor):
        return x.t
    if isinstance(x, (list, tuple)):
        return type(x)(bare(y) for y in x)
    return {key: bare(y) for key, y in x.items()} if isinstance(x, dict) else x


def dressed(x):
    """Returns x with ours in the place of minidl's Tensors."""
    if isinstance(x, minidl.Tensor):
        return Tensor(x)
    return tuple(dressed(y) for y in x) if isinstance(x, (list, tuple)) else x


def found(name):
    """Returns minidl's function of this name, whose first argument is the tensor."""
    for place in (minidl.Tensor, F, minidl):
        f = getattr(place, name, None)
        if callable(f) and not isinstance(f, type):
            return f
    raise NotMapped(f"Tensor.{name}")


def call(name, *args, **options):
    if "axis" in options:
        options["dim"] = options.pop("axis")
    return dressed(found(name)(*bare(args), **bare(options)))


def sizes(shape):
    """Returns the shape that was given as one tuple or as numbers."""
    return tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (list, tuple)) else shape


class Named(type):
    """Tensor.relu, a function of the class, is looked up in minidl, too."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        found(name)
        return lambda *args, **options: call(name, *args, **options)


class Tensor(metaclass=Named):
    """A minidl Tensor, in `t`, under tinygrad's names."""

    def __init__(self, data, device=None, dtype=None, requires_grad=False):
        if isinstance(data, Tensor):
            data = data.t
        if not isinstance(data, minidl.Tensor):
            if dtype is None and not hasattr(data, "dtype"):  # numbers of Python
                dtype = DEFAULTS.get(np.asarray(bare(data)).dtype)
            array = np.array(bare(data), dtype)
            # of any tensor the gradient may be asked for
            data = minidl.Tensor(array, requires_grad=array.dtype.kind == "f")
        self.t = data

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        found(name)
        return lambda *args, **options: call(name, self, *args, **options)

    shape = property(lambda self: self.t.shape)
    dtype = property(lambda self: self.t.dtype)
    ndim = property(lambda self: self.t.ndim)
    T = property(lambda self: self.transpose())

    def __len__(self):
        return len(self.t)

    def __bool__(self):
        return bool(self.t)

    def __getitem__(self, at):
        return Tensor(self.t[bare(at)])

    def realize(self, *_):
        return self

    def contiguous(self):
        return self

    def gradient(self, *leaves):
        for leaf in leaves:
            leaf.t.grad = None
        if self.t.requires_grad:
            self.t.backward()
        return [Tensor(np.zeros(leaf.shape) if leaf.t.grad is None else leaf.t.grad)
                for leaf in leaves]

    # ---- names, arguments and defaults that are tinygrad's

    def numpy(self):
        """Whole numbers are int32 in tinygrad, where PyTorch and minidl have int64."""
        x = self.t.numpy()
        return x.astype(np.int32) if x.dtype == np.int64 else x

    def cast(self, dtype):
        return call("to", self, dtype)

    def int(self):
        return self.cast(DTYPES["int32"])

    def bool(self):
        return self.cast(DTYPES["bool"])

    def max(self, axis=None, keepdim=False):
        return call("amax", self, all_axes(self, axis), keepdim)

    def min(self, axis=None, keepdim=False):
        return call("amin", self, all_axes(self, axis), keepdim)

    def std_mean(self, axis=None, keepdim=False, correction=1):
        return self.std(axis, keepdim, correction), call("mean", self, axis, keepdim)

    def std(self, axis=None, keepdim=False, correction=1):
        return call("std", self, axis, correction=correction, keepdim=keepdim)

    def var(self, axis=None, keepdim=False, correction=1):
        return call("var", self, axis, correction=correction, keepdim=keepdim)

    def softmax(self, axis=-1):
        return call("softmax", self, axis)

    def log_softmax(self, axis=-1):
        return call("log_softmax", self, axis)

    def logsumexp(self, axis=None, keepdim=False):
        return call("logsumexp", self, all_axes(self, axis), keepdim)

    def cumsum(self, axis=0):
        return call("cumsum", self, axis)

    def dot(self, other):
        return call("matmul", self, other)

    def cat(self, *others, dim=0):
        return call("cat", [self, *others], dim)

    def stack(self, *others, dim=0):
        return call("stack", [self, *others] if others or isinstance(self, Tensor) else self, dim)

    def meshgrid(self, *others, indexing="ij"):
        return call("meshgrid", self, *others, indexing=indexing)

    def flip(self, *axes):
        return call("flip", self, sizes(axes))

    def shrink(self, bounds):
        return Tensor(self.t[tuple(slice(None) if b is None else slice(*b) for b in bounds)])

    def pad(self, padding, mode="constant", value=0.0):
        """padding: PyTorch's numbers, or a pair for each axis, the first axis first."""
        if any(p is None or isinstance(p, (tuple, list)) for p in padding):
            if len(padding) != self.ndim:
                raise ValueError(f"want a pair for each of {self.ndim} axes, got {padding}")
            padding = [n for pair in reversed(padding) for n in pair or (0, 0)]
        return call("pad", self, list(padding), mode, value)

    def where(self, x, y):
        return call("where", self, x, y)

    def clip(self, min_=None, max_=None):
        return call("clamp", self, min_, max_)

    def transpose(self, dim0=1, dim1=0):
        return call("transpose", self, dim0, dim1)

    def gelu(self):
        return call("gelu", self, "tanh")

    def swish(self):
        return call("silu", self)

    def leaky_relu(self, neg_slope=0.01):
        return call("leaky_relu", self, neg_slope)

    def mod(self, other, reverse=False):
        return call("remainder", *((other, self) if reverse else (self, other)))

    def div(self, other, reverse=False, **options):
        return call("div", *((other, self) if reverse else (self, other)), **options)

    def sub(self, other, reverse=False):
        return call("sub", *((other, self) if reverse else (self, other)))

    def pow(self, other, reverse=False):
        return call("pow", *((other, self) if reverse else (self, other)))

    def interpolate(self, size, mode="linear", align_corners=False):
        mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[len(size)] if mode == "linear" else mode
        options = {} if mode.startswith("nearest") else {"align_corners": align_corners}
        return call("interpolate", self, size=size, mode=mode, **options)

    def conv2d(self, weight, bias=None, groups=1, stride=1, dilation=1, padding=0):
        x, padding = bordered(self, padding)
        return windowed("conv", x, weight, bias, stride, padding, dilation, groups)

    def conv_transpose2d(self, weight, bias=None, groups=1, stride=1, dilation=1, padding=0,
                         output_padding=0):
        return windowed("conv_transpose", self, weight, bias, stride, padding, output_padding,
                        groups, dilation)

    def max_pool2d(self, kernel_size=(2, 2), stride=None, dilation=1, padding=0, ceil_mode=False,
                   return_indices=False):
        x, padding = bordered(self, padding, -np.inf)
        return windowed("max_pool", x, kernel_size, stride, padding, **given(
            dilation=(dilation, 1), ceil_mode=(ceil_mode, False),
            return_indices=(return_indices, False)))

    def avg_pool2d(self, kernel_size=(2, 2), stride=None, dilation=1, padding=0, ceil_mode=False,
                   count_include_pad=True):
        return windowed("avg_pool", self, kernel_size, stride, padding, **given(
            dilation=(dilation, 1), ceil_mode=(ceil_mode, False),
            count_include_pad=(count_include_pad, True)))

    def cross_entropy(self, y, reduction="mean", label_smoothing=0.0):
        return call("cross_entropy", self, y, reduction=reduction, label_smoothing=label_smoothing)

    def binary_crossentropy(self, y, reduction="mean"):
        return call("binary_cross_entropy", self, y, reduction=reduction)

    def binary_crossentropy_logits(self, y, reduction="mean", pos_weight=None):
        return call("binary_cross_entropy_with_logits", self, y, reduction=reduction,
                    **given(pos_weight=(pos_weight, None)))

    def sparse_categorical_crossentropy(self, y, ignore_index=-1, label_smoothing=0.0,
                                        reduction="mean"):
        return call("cross_entropy", self, y, ignore_index=ignore_index, reduction=reduction,
                    label_smoothing=label_smoothing)

    def scaled_dot_product_attention(self, key, value, attn_mask=None, dropout_p=0.0,
                                     is_causal=False, enable_gqa=False):
        if is_causal and attn_mask is not None:
            raise NotMapped("attention that is causal and has a mask: minidl takes both")
        if enable_gqa:
            raise NotMapped("attention with fewer heads of keys than of queries")
        return call("scaled_dot_product_attention", self, key, value, attn_mask, dropout_p,
                    is_causal)

    def size(self, dim=None):
        return self.shape if dim is None else self.shape[dim]

    def full_like(self, value, dtype=None):
        return call("full_like", self, value, dtype=dtype)

    # ---- functions of the class

    @staticmethod
    def einsum(formula, *operands):
        return call("einsum", formula, *(operands[0] if len(operands) == 1 and isinstance(
            operands[0], (list, tuple)) else operands))

    @staticmethod
    def zeros(*shape, dtype=DTYPES["float32"], **options):
        return call("zeros", *sizes(shape), dtype=dtype)

    @staticmethod
    def ones(*shape, dtype=DTYPES["float32"], **options):
        return call("ones", *sizes(shape), dtype=dtype)

    @staticmethod
    def empty(*shape, **options):
        return call("empty", *sizes(shape))

    @staticmethod
    def rand(*shape, **options):
        return call("rand", *sizes(shape))

    @staticmethod
    def randn(*shape, **options):
        return call("randn", *sizes(shape))

    @staticmethod
    def full(shape, value, dtype=None, **options):
        return Tensor(minidl.full(sizes([shape]), value, dtype=dtype))

    @staticmethod
    def arange(*bounds, dtype=None):
        return call("arange", *bounds, dtype=dtype)

    @staticmethod
    def linspace(start, end, steps, dtype=DTYPES["float32"]):
        return call("linspace", start, end, steps, dtype=dtype)

    @staticmethod
    def eye(n, m=None, dtype=DTYPES["float32"]):
        return call("eye", n, m, dtype=dtype)


def all_axes(x, axis):
    return tuple(range(x.ndim)) if axis is None else axis


def given(**options):
    """Returns {name: value} of those that are not the default. options: name=(value, default)."""
    return {name: value for name, (value, default) in options.items() if value != default}


def bordered(x, padding, value=0.0):
    """Returns (x with the borders that have a width for each side, what is left to pad)."""
    if isinstance(padding, (list, tuple)) and len(padding) == 2 * (x.ndim - 2):
        return x.pad(padding, value=value), 0
    return x, padding


def windowed(name, x, *args, **options):
    """A convolution or a pool: tinygrad's has no number of axes in its name, minidl's has."""
    return call(f"{name}{x.ndim - 2}d", x, *args, **options)


def operator(name):
    return lambda self, other: Tensor(getattr(self.t, name)(bare(other)))


for _name in "add sub mul truediv floordiv mod pow matmul and or xor eq ne lt le gt ge".split():
    for _full in (f"__{_name}__", f"__r{_name}__"):
        if hasattr(minidl.Tensor, _full):
            setattr(Tensor, _full, operator(_full))
for _name in ("neg", "abs", "invert"):
    setattr(Tensor, f"__{_name}__",
            lambda self, name=f"__{_name}__": Tensor(getattr(self.t, name)()))


def stand_in():
    """Returns {name: module} of what test_ops.py imports of tinygrad."""
    modules = {name: types.ModuleType(name) for name in (
        "tinygrad", "tinygrad.helpers", "tinygrad.tensor", "tinygrad.device")}
    top, helpers, tensor, device = modules.values()
    top.Tensor, top.dtypes = Tensor, types.SimpleNamespace(**DTYPES)
    top.dtypes.min = lambda dtype: np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf
    top.dtypes.max = lambda dtype: np.iinfo(dtype).max if dtype.kind in "iu" else np.inf
    top.Device = types.SimpleNamespace(DEFAULT="CPU")
    helpers.getenv = lambda name, default=0: default
    helpers.Context = lambda **_: contextlib.nullcontext()
    helpers.CI = True  # else every comparison prints its times
    for name in "IMAGE DEBUG CPU_LLVM AMD_LLVM EMULATE".split():
        setattr(helpers, name, 0)
    tensor._to_np_dtype = np.dtype
    device.is_dtype_supported = lambda *_: True
    return modules


def load():
    path = unpacked("tinygrad", VERSION) / "test" / "test_ops.py"
    spec = importlib.util.spec_from_file_location("tinygrad_test_ops", path)
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, stand_in()):
        spec.loader.exec_module(module)
    return module


def outcome_of(name, error):
    """Returns (outcome, why) of what a comparison raised, or what the test `name` did itself."""
    if isinstance(error, NotMapped):
        return "not mapped", str(error)
    if name in TINYGRADS:
        return "not mapped", f"tinygrad's own: {TINYGRADS[name]}"
    if isinstance(error, AttributeError) and str(error).startswith("__"):
        return "not mapped", f"Tensor.{error}"
    if isinstance(error, REFUSALS) and not isinstance(error, AssertionError):
        return "not mapped", f"minidl refuses: {type(error).__name__}: {str(error)[:70]}"
    return "wrong", f"{type(error).__name__}: {str(error)[:400]}"


def cases(word=""):
    module, results = load(), []

    def counted(compare):
        def run(*args, **options):
            try:
                compare(*args, **options)
                results.append(("passed", ""))
            except unittest.SkipTest:
                raise
            except Exception as error:
                results.append(outcome_of("", error))
        return run

    def refused(self, shps, torch_fxn, tinygrad_fxn=None, expected=None, forward_only=False,
                exact=False, **options):
        """Both must refuse; the error's class and words may differ."""
        refusal(self, shps, torch_fxn, tinygrad_fxn, REFUSALS, forward_only, **options)

    refusal = module.TestOps.helper_test_exception
    module.helper_test_op = counted(module.helper_test_op)
    module.TestOps.helper_test_exception = counted(refused)
    for kind in list(vars(module).values()):
        if not (isinstance(kind, type) and issubclass(kind, unittest.TestCase)):
            continue
        for name in unittest.defaultTestLoader.getTestCaseNames(kind):
            if word not in name:
                continue
            results.clear()
            test = getattr(kind, name)
            if getattr(test, "__unittest_skip__", False):
                yield name, "not mapped", f"tinygrad skips it: {test.__unittest_skip_why__}"
                continue
            try:
                test(kind(name))
                if not results:
                    results.append(("passed", ""))
            except unittest.SkipTest as error:
                results.append(("not mapped", f"tinygrad skips it: {error}"))
            except Exception as error:
                results.append(outcome_of(name, error))
            for i, (outcome, why) in enumerate(results):
                yield f"{name} {i}", outcome, why
