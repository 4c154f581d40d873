"""Predicts how much memory training will take, from formulas and two small forwards.

The plain form: minidl/plain/memory.py. This file adds other precisions, and ZeRO, which divides
arrays among N ranks.

    bytes per parameter   weight  gradient  master  Adam's m, v     sum
    fp32, O1                   4         4       0            8      16
    O2                         2         2       4            8      16
    O2, ZeRO 1                 2         2     4/N          8/N      4 + 12/N
    O2, ZeRO 2                 2       2/N     4/N          8/N      2 + 14/N
    O2, ZeRO 3               2/N       2/N     4/N          8/N      16/N

Each row of the batch adds the same number of bytes, b. So a forward of r rows saves a + b r bytes,
where a is a constant. Two forwards, of one row and of two rows, give a and b exactly. The workspace
of ops is computed by formulas (workspace.py).
Source: Rajbhandari et al. 2020 (arXiv 1910.02054), table 1.
Test: tests/memory/test_predict.py   Measured by: ledger.py   Tutorial: tutorials/06_memory.py
"""

import numpy as np

from minidl import random
from minidl.memory import ledger as memory
from minidl.memory.saved_bytes import saved_bytes
from minidl.memory.workspace import workspace
from minidl.nn.norm import BatchNorm
from minidl.precision import amp
from minidl.tensor import Tensor

# For each parameter: bytes of (weight, gradient, master weight, one state of the optimizer).
WIDTHS = {"O0": (4, 4, 0, 4), "O1": (4, 4, 0, 4), "O2": (2, 2, 4, 4), "O3": (2, 2, 0, 2)}
N_STATES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}  # state arrays for each parameter


def predict(model, batch=None, loss=None, precision="O0", optimizer="adamw", zero=0, world=1,
            dtype=np.float16):
    """Returns {kind: bytes} for the memory that one rank will hold. The key "total" has the sum.

    model:      a Module, or an int: the number of parameters. A Module is unchanged afterwards.
    batch:      a tuple of Tensors or arrays, with the same number of rows (first dimension). If
                None, the result has no activations and no workspace.
    loss:       a function. loss(model, *batch) returns a Tensor. Needed if there is a batch.
    precision:  "O0" (fp32) to "O3", as in amp.initialize.
    optimizer:  "sgd", "momentum" (SGD with momentum), "adam" or "adamw".
    zero:       0 for plain data parallelism, or stage 1, 2 or 3 of ZeRO.
    world:      the number of ranks. Each rank has n / world of n parameters, rounded up.
    dtype:      the 2-byte dtype of O1 to O3: float16 or minidl.bfloat16.
    Raises ValueError for other values of precision, optimizer or zero, or if the batch has fewer
    than two rows."""
    if precision not in WIDTHS or optimizer not in N_STATES or zero not in (0, 1, 2, 3):
        raise ValueError(f"predict wants a precision ({', '.join(WIDTHS)}), an optimizer "
                         f"({', '.join(N_STATES)}) and zero=0, 1, 2 or 3; got "
                         f"precision={precision!r}, optimizer={optimizer!r}, zero={zero!r}")
    held = dict.fromkeys(memory.STATES, 0)
    for n, (weight, gradient, master, state) in _counts(model, precision):
        share = -(-n // world)
        held["parameters"] += (share if zero >= 3 else n) * weight
        held["gradients"] += (share if zero >= 2 else n) * gradient
        held["master weights"] += (share if zero >= 1 else n) * master
        held["optimizer"] += (share if zero >= 1 else n) * state * N_STATES[optimizer]
    if batch is not None:
        held["activations"], held["workspace"] = activations(model, batch, loss, precision, dtype)
    return {**held, "total": sum(held.values())}


def _counts(model, precision):
    """Returns a list of pairs (number of parameters, their row of WIDTHS). For a Module the list
    has two pairs. At level O2 the second pair is for the parameters of batch norm, which stay in
    fp32. At other levels the second pair has 0 parameters."""
    if isinstance(model, int):
        return [(model, WIDTHS[precision])]
    wide = {p for m in model.modules() if isinstance(m, BatchNorm) for p in m.parameters()}
    wide = wide if precision == "O2" else set()
    narrow = sum(p.numel() for p in model.parameters() if p not in wide)
    return [(narrow, WIDTHS[precision]), (sum(p.numel() for p in wide), WIDTHS["O0"])]


def activations(model, batch, loss, precision="O0", dtype=np.float16):
    """Returns (saved, workspace), in bytes. saved: what the forward of `loss(model, *batch)` saves.
    workspace: the largest workspace of an op. To find them, runs forwards of the first row and of
    the first two rows."""
    rows = {len(array) for array in batch}
    if len(rows) != 1 or min(rows) < 2:
        raise ValueError("predict wants a batch whose arrays all have the same number of rows, at "
                         f"least 2; got arrays with {[len(array) for array in batch]} rows")
    n = rows.pop()
    (one, workspace), (two, _) = (
        _forward(model, [array[:k] for array in batch], loss, precision, dtype, n // k)
        for k in (1, 2))
    return one + (n - 1) * (two - one), workspace


def _forward(model, batch, loss, precision, dtype, times):
    """Returns (saved, workspace), in bytes. saved: what a forward saves for this batch. workspace:
    the workspace for a batch with `times` times as many rows. The model is unchanged afterwards."""
    batch = [x if isinstance(x, Tensor) else Tensor(np.asarray(x)) for x in batch]
    kept = [(t, t.array, t.grad) for t in (*model.parameters(), *model.buffers())]
    statistics = [(b.array, b.array.copy()) for b in model.buffers()]  # batch norm changes them
    forward, generator = vars(model).get("forward"), random.default_generator()
    place = generator.get_state()
    try:
        amp.prepare(model, precision, dtype)
        root = loss(model, *batch)
        return saved_bytes(root), workspace(root, rows=times)
    finally:
        generator.set_state(place)
        for t, data, grad in kept:
            t.data, t.grad = data, grad
        for data, before in statistics:
            data[...] = before
        vars(model).pop("forward", None)
        if forward is not None:
            vars(model)["forward"] = forward
