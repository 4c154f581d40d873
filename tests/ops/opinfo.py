"""Every provided op on PyTorch's own samples: values, dtypes, gradients, and what is refused.

    python -m tests.ops.opinfo                    the whole campaign, a table: a row an op
    python -m tests.ops.opinfo sort einsum        these ops, and each sample that is not right

PyTorch describes its ops in a list, `op_db`, whose entries make sample inputs for a dtype. A sample
is run twice, by PyTorch and by minidl, and counted under one of:

    right      shapes, dtypes and values are equal, and for float64 the gradients of the inputs
    refused    minidl raised an error; the table says which
    wrong      anything else

A sample that PyTorch itself refuses, or whose dtype we have not (complex), is not counted.
Source: torch.testing._internal.common_methods_invocations, PyTorch 2.13. `make opinfo`
"""

import collections
import contextlib
import re
import sys
import types
import unittest
import warnings
from unittest import mock

import numpy as np

import minidl
from minidl.nn import functional as F

# Equal bits of sums in another order: a few roundings of a few hundred terms, by dtype.
CLOSE = {"float64": 1e-11, "float32": 2e-5, "float16": 6e-3}
# PyTorch's slope is a sixth that is rounded to float32, in float64, too.
OF_GRADIENTS = {"nn.functional.hardsigmoid": 1e-8}
DTYPES = "float64 float32 float16 int64 int32 uint8 bool".split()
RANDOM = set("""nn.functional.dropout nn.functional.dropout2d nn.functional.dropout1d bernoulli
    multinomial randn rand randint randn_like rand_like randint_like empty empty_like randperm
    normal""".split())
# Which of equal elements comes first is not promised: where in the arguments `dim` is.
TIES = {"sort": 0, "argsort": 0, "median": 0, "topk": 1, "kthvalue": 1}
# Names that mean something else in minidl, or are no op there.
ELSEWHERE = {"mode"}


def op_db():
    """PyTorch's list of ops. Its tests want `expecttest`, of which the list needs only a name, and
    SciPy and a deep copy of every entry, of which it needs nothing: half of the import's time."""
    if "expecttest" not in sys.modules:
        sys.modules["expecttest"] = types.ModuleType("expecttest")
        sys.modules["expecttest"].TestCase = unittest.TestCase
    with (warnings.catch_warnings(), without("scipy"),
          mock.patch("dataclasses.asdict", lambda entry: dict(vars(entry)))):
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_utils
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.opinfo import core
    # Which of PyTorch's own test methods wants the samples: it looks at the source of every caller,
    # which takes twice as long as all else here. None does.
    common_utils.extract_test_fn = core.extract_test_fn = lambda: None
    return op_db


@contextlib.contextmanager
def without(name):
    """As if this package were not installed."""
    was = {name: sys.modules[name]} if name in sys.modules else {}
    sys.modules[name] = None
    try:
        yield
    finally:
        del sys.modules[name]
        sys.modules.update(was)


def ours(name):
    """minidl's function of PyTorch's name, or None."""
    found = _ours(name)
    return found if found is None or name not in ADAPTED else ADAPTED[name](found)


# Ops whose samples come in another order than the function's arguments.
ADAPTED = {
    "where": lambda f: lambda x, condition, other: f(condition, x, other),
    "einsum": lambda f: lambda tensors, equation: f(equation, *tensors),
    "nn.functional.embedding": lambda f: lambda w, ids, **options: f(ids, w, **options),
    "nn.functional.embedding_bag": lambda f: lambda w, ids, *a, **options: f(ids, w, *a, **options),
}


def _ours(name):
    if name in ELSEWHERE:
        return None
    if name.startswith("nn.functional."):
        return vars(F).get(name.removeprefix("nn.functional."))
    if name in vars(minidl) and callable(getattr(minidl, name)):
        return getattr(minidl, name)
    found = getattr(minidl.Tensor, name, None) if name not in vars(minidl) else None
    if isinstance(found, property):
        return found.fget
    return found


class NotTaken(Exception):
    """The sample has an argument of a kind that minidl does not have."""


def convert(x, leaves):
    """A sample's argument for minidl; tensors that want a gradient are appended to `leaves`."""
    import torch

    if isinstance(x, torch.Tensor):
        if x.layout != torch.strided:
            raise NotTaken(f"layout {x.layout}")
        tensor = minidl.Tensor(same_strides(x.detach()), requires_grad=x.requires_grad)
        if x.requires_grad:
            leaves.append(tensor)
        return tensor
    if isinstance(x, torch.dtype):
        name = str(x).removeprefix("torch.")
        if name.startswith("complex") or name not in (*DTYPES, "int8", "int16"):
            raise NotTaken(f"dtype {x}")
        return np.dtype(name)
    if isinstance(x, torch.device):
        return str(x)
    if isinstance(x, torch.Size):
        return tuple(x)
    if isinstance(x, (torch.layout, torch.memory_format)):
        raise NotTaken(f"{type(x).__name__} {x}")
    if isinstance(x, complex):
        raise NotTaken("complex number")
    if isinstance(x, dict):
        return {k: convert(v, leaves) for k, v in x.items()
                if v not in (torch.preserve_format, torch.contiguous_format)}  # the only order here
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(convert(v, leaves) for v in x))
    if isinstance(x, (list, tuple)):
        return type(x)(convert(v, leaves) for v in x)
    return x


def same_strides(x):
    """A NumPy copy that keeps the order of the strides."""
    a = x.numpy()
    return a.copy(order="K") if a.ndim else a.copy()


def torch_leaves(x, leaves):
    import torch

    if isinstance(x, torch.Tensor):
        if x.requires_grad:
            leaves.append(x)
    elif isinstance(x, dict):
        for v in x.values():
            torch_leaves(v, leaves)
    elif isinstance(x, (list, tuple)):
        for v in x:
            torch_leaves(v, leaves)
    return leaves


def flat(y):
    """The results as a list: tensors, numbers."""
    if isinstance(y, (list, tuple)):
        return [z for part in y for z in flat(part)]
    return [y]


def differs(got, wanted, close):
    """What is not equal, a short text, or None."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    if got.dtype != wanted.dtype:
        return f"dtype {got.dtype}, want {wanted.dtype}"
    if got.shape != wanted.shape:
        return f"shape {got.shape}, want {wanted.shape}"
    if got.dtype.kind != "f":
        return None if np.array_equal(got, wanted) else "values"
    finite = np.abs(wanted[np.isfinite(wanted)])
    scale = max(1.0, float(finite.max(initial=0)))
    if np.allclose(got, wanted, rtol=close, atol=close * scale, equal_nan=True):
        return None
    with np.errstate(all="ignore"):
        off = np.nanmax(np.abs(got.astype(float) - wanted.astype(float)), initial=0)
    return f"values, by up to {off:.2g}"


def same_order(name, sample, got, wanted):
    """Whether the indices `got` pick what `wanted` does, each element once."""
    at, x = TIES[name], sample.input.detach().numpy()
    dim = sample.kwargs.get("dim", sample.args[at] if len(sample.args) > at else -1)
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return False
    if got.ndim < x.ndim:
        got, wanted = np.expand_dims(got, dim), np.expand_dims(wanted, dim)
    ordered = np.sort(got, dim)
    if got.size and np.any(np.diff(ordered, axis=dim) == 0):
        return False
    return np.array_equal(*(np.take_along_axis(x, i, dim) for i in (got, wanted)),
                          equal_nan=x.dtype.kind == "f")


def run_sample(op, function, sample, dtype):
    """("right" | "refused" | "wrong", why), or None where PyTorch refuses."""
    import torch

    arguments = (sample.input, *sample.args), sample.kwargs
    try:
        torch.manual_seed(0)
        wanted = op.op(*arguments[0], **arguments[1])
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None
    leaves = []
    try:
        args, kwargs = convert(list(arguments[0]), leaves), convert(arguments[1], leaves)
        got = function(*args, **kwargs)
    except NotTaken as error:
        return "refused", str(error)
    except Exception as error:
        return "refused", f"{type(error).__name__}: {error}"
    gots, wanteds = flat(got), flat(wanted)
    if len(gots) != len(wanteds):
        return "wrong", f"{len(gots)} results, want {len(wanteds)}"
    random = op.name in RANDOM or sample.kwargs.get("dropout_p")
    for g, w in zip(gots, wanteds):
        w_array = w.detach().numpy() if isinstance(w, torch.Tensor) else w
        g_array = g.array if isinstance(g, minidl.Tensor) else g
        if isinstance(w, torch.Tensor) != isinstance(g, minidl.Tensor):
            return "wrong", f"a {type(g).__name__}, want a {type(w).__name__}"
        if random:
            if (w_array.shape, w_array.dtype) != (g_array.shape, g_array.dtype):
                return "wrong", (f"{g_array.shape} {g_array.dtype}, want {w_array.shape} "
                                 f"{w_array.dtype}")
        elif op.name in TIES and w is wanteds[-1] and sample.input.ndim and (
                len(wanteds) == 2 or op.name == "argsort"):
            if not same_order(op.name, sample, g_array, w_array):
                return "wrong", "indices"
        elif why := differs(g_array, w_array, CLOSE.get(str(w_array.dtype), 0)
                            if hasattr(w_array, "dtype") else 0):
            return "wrong", why
    if dtype == "float64" and not random:
        return gradients(gots, wanteds, leaves, torch_leaves(arguments, []),
                         OF_GRADIENTS.get(op.name, 1e-9))
    return "right", ""


def gradients(gots, wanteds, leaves, their_leaves, close):
    import torch

    rng = np.random.default_rng(3)
    pairs = [(g, w, rng.standard_normal(tuple(w.shape))) for g, w in zip(gots, wanteds)
             if isinstance(w, torch.Tensor) and w.requires_grad]
    if any(not g.requires_grad for g, _, _ in pairs):
        return "wrong", "no gradient"
    if not pairs:
        extra = any(isinstance(g, minidl.Tensor) and g.requires_grad for g in gots)
        return ("wrong", "a gradient where PyTorch has none") if extra else ("right", "")
    try:
        theirs = torch.autograd.grad([w for _, w, _ in pairs], their_leaves,
                                     [torch.tensor(c, dtype=w.dtype) for _, w, c in pairs],
                                     allow_unused=True)
    except RuntimeError:
        return "right", ""  # PyTorch has no gradient for it
    try:
        minidl.backward.walk([g for g, _, _ in pairs], [c.astype(g.dtype) for g, _, c in pairs])
    except Exception as error:
        return "refused", f"backward: {type(error).__name__}: {error}"
    for leaf, wanted in zip(leaves, theirs):
        if leaf.grad is None or wanted is None:
            there = leaf.grad if wanted is None else wanted.numpy()
            if there is not None and there.any():
                return "wrong", "gradient is None"
        elif why := differs(leaf.grad, wanted.numpy(), close):
            return "wrong", f"gradient: {why}"
    return "right", ""


def provided():
    """[(OpInfo, minidl's function)] of all ops that both have."""
    return [(op, found) for op in op_db() if (found := ours(op.name)) is not None]


def samples(op, dtype):
    """PyTorch's samples of this dtype; none where the op does not take it."""
    import torch

    kind = getattr(torch, dtype)
    if kind not in op.dtypes:
        return
    wants = dtype == "float64" and op.supports_autograd
    torch.manual_seed(0)
    try:
        yield from op.sample_inputs("cpu", kind, requires_grad=wants)
    except RuntimeError:
        return


def campaign(ops, dtypes=DTYPES, limit=None, each=None):
    """{(name, variant): Counter of outcomes, and of reasons}; `limit` samples an op and dtype."""
    table = {}
    for op, function in ops:
        counts = table[op.name, op.variant_test_name] = collections.Counter()
        for dtype in dtypes:
            for i, sample in enumerate(samples(op, dtype)):
                if limit is not None and i >= limit:
                    break
                with warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore")
                    outcome = run_sample(op, function, sample, dtype)
                if outcome is None:
                    continue
                counts[outcome[0]] += 1
                if outcome[0] != "right":
                    counts[outcome[0], re.sub(r"\d+", "N", outcome[1])[:100]] += 1
                    if each:
                        each(op, dtype, sample, *outcome)
    return table


def rows(table):
    """Lines of text: op, samples, run, right, refused and why."""
    yield f"{'op':44} {'samples':>7} {'run':>6} {'right':>6} {'wrong':>5} {'refused':>7}  why"
    total = collections.Counter()
    for (name, variant), counts in sorted(table.items()):
        n = [counts[k] for k in ("right", "wrong", "refused")]
        total.update(right=n[0], wrong=n[1], refused=n[2])
        why = "; ".join(f"{k[0]} {c}: {k[1]}" for k, c in counts.items() if isinstance(k, tuple))
        title = f"{name} {variant}".strip()
        yield (f"{title:44} {sum(n):7} {n[0] + n[1]:6} {n[0]:6} {n[1]:5} {n[2]:7}  {why}")
    n = sum(total.values())
    run = total["right"] + total["wrong"]
    yield (f"{len(table)} ops: {n} samples, run {run} ({run / max(n, 1):.2%}), right "
           f"{total['right']}, wrong {total['wrong']}, refused {total['refused']}")


def main(names):
    chosen = [(op, f) for op, f in provided() if not names or op.name in names]

    def each(op, dtype, sample, outcome, why):
        if names:
            text = re.sub(r"\s+", " ", f"{sample.args} {sample.kwargs}")[:150]
            shape = tuple(getattr(sample.input, "shape", ()))
            print(f"  {outcome}: {op.name} {dtype} {shape} {text}: {why[:200]}")

    print("\n".join(rows(campaign(chosen, each=each))))


if __name__ == "__main__":
    main(sys.argv[1:])
