"""The table of all operators that minidl reads, {name: function}. Each file adds its operators.

Test: tests/infer/onnx/test_every_operator.py, test_operators.py   Used by: load.py
"""

from minidl.infer.onnx import (
    arrange, control, elements, layers, quantized, recurrent, reduce, resize,
)
from minidl.infer.onnx.operator import parameters

FILES = elements, reduce, arrange, layers, resize, recurrent, quantized, control
TABLE = {name: f for file in FILES for name, f in file.TABLE.items()}


def table():
    """Returns a text with a line for each operator: its name, file, inputs and attributes."""
    lines = []
    for file in FILES:
        for name, f in sorted(file.TABLE.items()):
            inputs, attributes = ([p.name for p in ps if p.name[0] != "_"] for ps in parameters(f))
            lines.append(f"{name:26}{file.__name__.rpartition('.')[2]:10}"
                         f"{', '.join(inputs)}{'; ' * bool(attributes)}{', '.join(attributes)}")
    return "\n".join(lines)
