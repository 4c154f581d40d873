"""Every writer of the export: what it writes is read back, and `make onnx` runs it by onnxruntime.

The samples of all ops call most writers. CALLS calls the others. Each in seven dtypes, also of no
elements and of a single number.
"""

from collections import Counter

import numpy as np
import pytest

import minidl
from minidl import infer
from minidl.infer.onnx import writers
from minidl.nn import llama
from minidl.ops.extra import recurrent
from tests.conftest import some
from tests.infer.models import array
from tests.infer.onnx.files import REAL, close, has_peer, peer, tolerance
from tests.ops import samples, samples_composed, samples_extra, samples_nn

# samples are cast to dtypes, and have ties, zeros and NaN: x / 0 is infinite
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
PAIRS = [(4 * array(3, 4), array(3, 4, seed=1)), (array(3, 4), array(4, seed=1)),
         (array(3, 4).round(), array(1, 4, seed=1).round()), (array(), array(2, seed=1)),
         (array(0, 3), array(1, 3))]
BITS = [tuple(np.asarray(abs(v), dtype) for v in pair)
        for pair in PAIRS for dtype in ("?", "i4", "u1")]
SINGLE = [(array(3, 4),), (array(),), (array(0, 3),)]
ODD = [*SINGLE, (np.array([1, np.nan, np.inf, -np.inf, 0, -0.0], "f4"),)]
STATE, CELL = array(2, 3, seed=1), array(2, 3, seed=2)
CALLS = {
    "argmax": (lambda x: (x.argmax(1), x.argmax(), x.argmax(0, True), x.argmax(-1)), SINGLE[:1]),
    "argmin": (lambda x: (x.argmin(1), x.argmin(), x.argmin(0, True)), SINGLE[:1]),
    "argmax of a number": (lambda x: x.argmax(), SINGLE[1:2]),
    "argmax of truth": (lambda x: (x.argmax(1), x.argmin()), [(array(3, 4) > 0,)]),
    "&": (lambda x, y: x & y, BITS), "|": (lambda x, y: x | y, BITS),
    "^": (lambda x, y: x ^ y, BITS), "~": (lambda x, y: ~x, BITS),
    "==": (lambda x, y: x == y, PAIRS), "!=": (lambda x, y: x != y, PAIRS),
    ">": (lambda x, y: x > y, PAIRS), ">=": (lambda x, y: x >= y, PAIRS),
    "<": (lambda x, y: x < y, PAIRS), "<=": (lambda x, y: x <= y, PAIRS),
    "and": (minidl.logical_and, PAIRS), "or": (minidl.logical_or, PAIRS),
    "not": (minidl.logical_not, SINGLE), "isnan": (minidl.isnan, ODD),
    "isinf": (minidl.isinf, ODD), "isfinite": (minidl.isfinite, ODD),
    "truth": (lambda x, y: ~((x > 0) & (y > 0) | (x < y) ^ (x == y)), PAIRS),
    "choice": (lambda x, y: (minidl.where(x > y, x, 0.5), x.clamp(0.5, 1.5), x.cumsum(-1)),
               PAIRS + [((4 * array(3, 4)).astype("i4"), array(4).astype("i4"))]),
    "rnn": (recurrent.rnn_sequence, [(array(4, 2, 3), STATE, array(3, 3), array(3))]),
    "lstm": (recurrent.lstm_sequence, [(array(4, 2, 12), STATE, CELL, array(12, 3), array(12))]),
    "gru": (recurrent.gru_sequence, [(array(4, 2, 9), STATE, array(9, 3), array(9))]),
    "rotary": (llama.Rotary.apply, [(array(2, 3, 5, 4), array(5, 2), array(5, 2, seed=1))])}


def calls():
    """(name, function, arrays) of all samples and of CALLS."""
    for module in (samples, samples_nn, samples_extra, samples_composed):
        for row in module.ROWS:
            for arrays in [*row.inputs, *row.kinks]:
                yield row.name, row.fn, arrays
    for name, (f, inputs) in CALLS.items():
        for arrays in inputs:
            yield name, f, arrays


FLOATING = {"isnan", "isinf", "isfinite", "rnn", "lstm", "gru"}  # have no operators for integers


def exported(dtype):
    """(name, arrays, results of the graph, its file) of all calls with floating arrays in dtype.
    A sample may be refused: it is no op of this dtype, or of inference. CALLS may not."""
    for name, f, arrays in calls():
        arrays = [x.astype(dtype) if x.dtype.kind == "f" else x for x in arrays]
        try:
            graph = infer.trace(lambda *xs, f=f: several(f(*xs)), *map(minidl.tensor, arrays))
            file = infer.export_onnx(graph)
        except Exception:  # each op has words of its own
            if name in CALLS and (dtype[0] == "f" or dtype != "?" and name not in FLOATING):
                raise
            continue
        wanted = graph.run(*arrays)
        feed = {v.name: x for v, x in zip(graph.inputs, arrays, strict=True)}
        yield name, feed, (wanted,) if graph.single else wanted, file


def several(y):
    return tuple(y) if isinstance(y, (tuple, list)) else y


def test_every_writer_is_called_and_read_back(monkeypatch):
    """A new writer without a sample: give it a row in CALLS."""
    called, n = set(), Counter()
    for name, write in writers.WRITERS.items():
        def noted(*args, name=name, write=write):
            called.add(name)
            return write(*args)
        monkeypatch.setitem(writers.WRITERS, name, noted)
    for dtype in ("f4", "i8", "?") if REAL else ("f4",):  # the stand-in looks at no dtypes
        for name, feed, wanted, file in exported(dtype):
            graph = infer.import_onnx(file)
            found = graph.run(*(feed[v.name] for v in graph.inputs))
            close((found,) if graph.single else found, wanted, about=name)
            n[dtype] += 1
    assert called == set(writers.WRITERS)
    assert n["f4"] > 500 and (not REAL or n["i8"] > 300 and n["?"] > 200), n


def differs(name, feed, dtype):
    """Whether onnxruntime has its own opinion: of the mean of nothing, which is 0 there; of the
    largest of some numbers and NaN; of the remainders of nothing by 0, an error. And whether the
    evaluator has a mistake: its ConvTranspose wants a bias."""
    empty = any(not x.size for x in feed.values())
    if name.startswith("max_pool2d"):
        return any(np.isnan(x).any() for x in feed.values())
    return empty and name in ("mean", "remainder") or (
        dtype == "f8" and name.startswith("conv_transpose"))


@pytest.mark.skipif(not has_peer(), reason="onnxruntime: make onnx")
@pytest.mark.parametrize("dtype", some(["f4", "f8", "i4", "f2", "i8", "u1", "?"], of=3))
def test_what_a_writer_writes_is_run_by_onnxruntime(dtype):
    """Or, where that has no code for a dtype, by the evaluator of the package onnx."""
    n = 0
    for name, feed, wanted, file in exported(dtype):
        if not differs(name, feed, dtype):
            close(peer(file, feed), wanted, about=name, **tolerance(dtype))
            n += 1
    assert n > (150 if dtype == "?" else 300), n
