"""Reads and writes ONNX files. A table has a small function for each operator.

    load.py        file -> Graph              export.py      Graph -> file, with writers.py
    elements.py    one number in, one out     reduce.py      many numbers in, one out
    arrange.py     shapes, parts, indices     layers.py      products, windows, norms, attention
    recurrent.py   LSTM, GRU, RNN             quantized.py   products and sums of integers
    resize.py      images of other sizes      control.py     If, Loop
    tables.py      all operators by name      operator.py    code that these files share

    print(infer.onnx.table())        all operators, with their inputs and attributes

Source: onnx.ai/onnx/operators.   Test: tests/infer/onnx/
"""

from minidl.infer.onnx.export import export_onnx
from minidl.infer.onnx.load import import_onnx
from minidl.infer.onnx.operator import Refused
from minidl.infer.onnx.tables import FILES, TABLE, table
