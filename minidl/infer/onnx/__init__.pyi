"""minidl.infer.onnx as editors see it. `make stubs` writes this file."""

from minidl.infer.onnx import export as export
from minidl.infer.onnx import load as load
from minidl.infer.onnx import operator as operator
from minidl.infer.onnx import tables as tables
from minidl.infer.onnx.export import export_onnx as export_onnx
from minidl.infer.onnx.load import import_onnx as import_onnx
from minidl.infer.onnx.operator import Refused as Refused
from minidl.infer.onnx.tables import FILES as FILES
from minidl.infer.onnx.tables import TABLE as TABLE
from minidl.infer.onnx.tables import table as table
