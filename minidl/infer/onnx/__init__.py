"""Files of ONNX, both ways: a table of small functions, one for each operator.

    load.py        file -> Graph              export.py      Graph -> file, with writers.py
    elements.py    one number in, one out     reduce.py      many numbers, one out
    arrange.py     shapes, parts, indices     layers.py      products, windows, norms, attention
    recurrent.py   LSTM, GRU, RNN             quantized.py   sums of whole numbers
    resize.py      images of other sizes      control.py     If, Loop

    print(infer.onnx.table())        all of them, and what each takes

Source: onnx.ai/onnx/operators.   Test: tests/infer/onnx/
"""

from minidl.infer.onnx import (
    arrange, control, elements, layers, quantized, recurrent, reduce, resize,
)
from minidl.infer.onnx.export import export_onnx
from minidl.infer.onnx.load import import_onnx
from minidl.infer.onnx.operator import Refused, parameters

FILES = elements, reduce, arrange, layers, resize, recurrent, quantized, control
TABLE = {name: f for file in FILES for name, f in file.TABLE.items()}


def table():
    """The operators as text: a line each, its file, inputs and attributes."""
    lines = []
    for file in FILES:
        for name, f in sorted(file.TABLE.items()):
            inputs, attributes = ([p.name for p in ps if p.name[0] != "_"] for ps in parameters(f))
            lines.append(f"{name:26}{file.__name__.rpartition('.')[2]:10}"
                         f"{', '.join(inputs)}{'; ' * bool(attributes)}{', '.join(attributes)}")
    return "\n".join(lines)
