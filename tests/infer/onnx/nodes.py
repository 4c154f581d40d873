"""`make onnx`: ONNX's own tests of its operators, 1,884 of them, and its nets, by minidl.

    python -m tests.infer.onnx.nodes [WORD]     those with WORD in their name; the exit status says
                                                whether any answer was wrong

An input that decides a shape (Reshape's) is a constant of the graph: all inputs of whole numbers
are, where the import asks for one; all inputs, where the shape of the result depends on numbers.
Tolerances are those of ONNX's runner; for float16, as it does for bfloat16, two steps at least:
sums in float32, rounded once, are nearer to the truth than its own in float16.
The nets have weights that are all equal, so that any answer is right: here they are random.
"""

import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases

from minidl import infer
from minidl.infer.onnx.operator import Refused
from tests.infer.onnx.files import peer

STEPS = {"bfloat16": 2**-6, "float16": 2**-9}
NETS = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def graph_of(model, given):
    """(the Graph, which inputs are constants of it: none, whole numbers, all)."""
    for what, kinds in (("", ""), ("whole numbers known", "iub"), ("all known", "iubfV")):
        known = {k: x if x.dtype.kind in kinds else x.shape for k, x in given.items()}
        try:
            return infer.import_onnx(model, known), what
        except Refused as error:
            if "depends on the graph's inputs" not in str(error) or what == "all known":
                raise


def difference(y, want, rtol, atol):
    """None, or what differs."""
    if isinstance(want, (list, tuple)) or y.shape != want.shape or y.dtype != want.dtype:
        return f"{y.dtype}{y.shape}, want {getattr(want, 'dtype', 'a list')}"
    rtol = max(rtol, STEPS.get(want.dtype.name, 0))
    y, want = (x.astype(np.float32) if x.dtype.kind == "V" else x for x in (y, want))
    return None if np.allclose(y, want, rtol, atol, equal_nan=True) else (
        f"off by {np.nanmax(np.abs(y.astype('f8') - want))}")


def judged(case):
    """('pass' or 'wrong' or 'unsupported', why) of one test."""
    try:
        known = ""
        for given, wanted in case.data_sets:
            given, wanted = ([onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto)
                              else x for x in xs] for xs in (given, wanted))
            if not all(hasattr(x, "dtype") for x in given):
                return "unsupported", "inputs that are no tensors"
            given = dict(zip([v.name for v in case.model.graph.input], given))
            graph, known = graph_of(case.model, given)
            results = graph.run(*(given[v.name] for v in graph.inputs))
            for y, want in zip((results,) if graph.single else results, wanted, strict=True):
                if found := difference(np.asarray(y), want, case.rtol, case.atol):
                    return "wrong", found
        return "pass", known
    except Refused as error:
        return "unsupported", str(error).partition(";")[0].replace(f" ({case.name})", "")


def nets(word):
    """The wheel's nets with seeded weights, beside onnxruntime: ('pass' or 'wrong', text) each."""
    for path in sorted(p for p in NETS.glob("*.onnx") if word in p.name):
        model, rng = onnx.load(path), np.random.default_rng(0)
        made = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
        kept = []
        for node in model.graph.node:  # ConstantOfShape stands for weights of that shape
            if node.op_type == "ConstantOfShape":
                shape = made[node.input[0]]
                x = rng.standard_normal(shape) * np.sqrt(2 / max(np.prod(shape[1:]), 1))
                model.graph.initializer.append(onnx.numpy_helper.from_array(
                    (x if len(shape) > 1 else abs(x) + 0.5).astype(np.float32), node.output[0]))
            else:
                kept.append(node)
        del model.graph.node[:]
        if kept[-1].op_type == "Softmax":  # of large numbers: a one and zeros, whatever came before
            model.graph.output[0].name = kept.pop().input[0]
        model.graph.node.extend(kept)
        graph = infer.import_onnx(model)
        x = rng.standard_normal(graph.inputs[0].shape).astype(np.float32)
        want, = peer(model, {graph.inputs[0].name: x})
        error = np.abs(graph.run(x) - want).max() / np.abs(want).max()
        yield "pass" if error < 1e-4 else "wrong", f"{path.stem}: {error:.1e} of the largest number"


def main(word=""):
    warnings.simplefilter("ignore")  # of the tests' own arithmetic
    counts, why = Counter(), Counter()
    with np.errstate(all="ignore"):
        for case in collect_testcases(None):
            if word in case.name:
                how, text = judged(case)
                counts[how, text if how == "pass" else ""] += 1
                if how == "wrong":
                    print(f"wrong  {case.name}: {text}", flush=True)
                why[text] += how == "unsupported"
        for how, text in nets(word):
            counts[how, "nets"] += 1
            print(f"{how}  {text}", flush=True)
    for text, n in why.most_common():
        print(f"{n:4}  {text}" if n else "", end="\n" if n else "")
    for (how, what), n in sorted(counts.items()):
        print(f"{n:5} {how} {what and f'({what})'}")
    return any(how == "wrong" for how, _ in counts)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
