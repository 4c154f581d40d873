"""Inference. Turns a trained model into a plan: a table of launches. A C loop runs these launches.

    graph = infer.trace(model.eval(), x)     a line for each Function that ran  trace, graph
    print(infer.optimise(graph))             {'batch_norm': 3, 'epilogue': 6}   passes/
    plan = infer.compile(graph)              kernels and one arena              lower, memory
    y = plan(x)                              the same result as model(x)        program
    print(plan.source("linear_0"))           the generated .cu
    step = infer.decoder(gpt, context=512)   text token by token                decoder, cache
    plan = infer.streamed(graph)             on a GPU: streams, one CUDA graph  streams
    q = infer.quantize(graph, batches)       linear layers in integers          quantize, whole
    infer.export_onnx(graph, "m.onnx"); graph = infer.import_onnx("m.onnx")     onnx/
    with infer.Batcher(plan) as b: b.submit(x[0]).result()    batched requests  batcher, load

Test: tests/infer/
"""

from minidl.infer.batcher import Batcher
from minidl.infer.decoder import Decoder
from minidl.infer.graph import Graph
from minidl.infer.onnx import export_onnx, import_onnx
from minidl.infer.passes import optimise
from minidl.infer.program import Plan
from minidl.infer.quantize import fake_quantize, quantize
from minidl.infer.streams import streamed
from minidl.infer.trace import trace

__all__ = ["Batcher", "Decoder", "Graph", "Plan", "compile", "decoder", "export_onnx",
           "fake_quantize", "import_onnx", "optimise", "quantize", "streamed", "trace"]

decoder = Decoder


def compile(graph, threads=1, poison=False):
    """Returns the Plan of a Graph. The docstring of program.Plan explains the arguments."""
    if not hasattr(graph, "verify"):
        raise TypeError("compile: wanted a Graph, as infer.trace(model, example) returns it; got "
                        f"{type(graph).__name__}")
    return Plan(graph, threads, poison)
