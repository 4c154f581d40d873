"""How long does inference take? Peers: onnxruntime, and the model run op by op.

    python benchmarks/bench_inference.py [--repeats 40] [--models mlp cnn] [--quick]
                                         [--threads 2] [--out FILE.json] [--compile]

    plan    minidl.infer: traced, optimised, compiled      eager   model(x) under no_grad
    ort     onnxruntime, one thread, all its optimisations, on the same weights
    ov      openvino, if installed; it reads the file that infer.export_onnx writes
    torch   with --compile: torch.compile of a PyTorch module with the same weights (mlp, cnn)

    mlp    784-512-512-10, batches of 1 and 64
    cnn    3 times (convolution, batch norm, relu) with poolings between them, then linear;
           28 x 28 images, batches of 1 and 32
    gpt    4 layers, width 256, 8 heads. "gpt 256": the logits of a text of 256 tokens. "gpt step":
           one more token after 128 tokens, with a cache of keys and values. Of the peers, only
           eager computes the whole text again
    int8   a linear layer, 1024 x 1024, in 8-bit integers, for 64 and for 256 rows of x. x is
           quantised at run time. Here eager is the plan in float32, and ort uses
           DynamicQuantizeMatMul

    read   only reads a block of memory with the size of the weights. Measured for one image or one
           token, in the same rounds as the models. No float32 plan can be faster than this

With one thread, times are CPU time, which a busy machine disturbs less. With more threads, times
are wall time, which is reliable only on a quiet machine. The plan and the peers are timed in turn.
Before each measurement there is a pause. In this pause the threads of the previous measurement fall
asleep. Then a first call wakes the threads for the next measurement. The table shows medians.
onnx's helper functions build onnxruntime's model from the traced graph. The attention in this model
is onnxruntime's fused operator.
"""

import argparse
import importlib
import os
import statistics
import sys
import time

from common import (
    bar, device_option, finish, heading, measured, ratio, row, skip, take_turns, threads, timed,
    write_figures,
)

NO_PEER = "onnxruntime and onnx, which are not installed: pip install 'minidl[bench]'"
MOST = {"mlp 1": 0.75, "mlp 64": 1.05, "cnn 1": 0.75, "cnn 32": 0.75, "gpt 256": 0.85,
        "gpt step": 0.5, "int8 64": 0.91, "int8 256": 0.91}
CALLS = {"mlp 1": 20, "mlp 64": 3, "cnn 1": 10, "cnn 32": 1, "gpt 256": 1,
         "gpt step": 4, "int8 64": 10, "int8 256": 3}
MOST_OF_TWO = {"mlp 1": 0.8, "mlp 64": 1.1, "cnn 1": 0.85, "cnn 32": 0.85}  # MOST for two threads
INT8_FASTER = 3  # int8 must be this many times as fast as our own float32
READING = "mlp 1", "gpt step"  # rows that need most of their time to read the weights
PAST = 128  # number of tokens before the measured step

# {key: (the peer's name, the largest part of the peer's time that the plan may take)}
OTHERS = {"ov": ("OpenVINO", 1.0), "torch": ("torch.compile", 0.5)}

TOLERANCE = 2e-6  # relative to the largest number. Peers add float32 numbers in another order


def options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--models", nargs="+", default=["mlp", "cnn", "gpt", "int8"])
    parser.add_argument("--threads", type=int, default=1, choices=(1, 2))
    parser.add_argument("--quick", action="store_true", help="5 repeats")
    device_option(parser, "a C loop on the CPU runs a plan")
    parser.add_argument("--compile", action="store_true", help="torch.compile as a peer, too")
    parser.add_argument("--out", help="JSON file")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.repeats = 5 if args.quick else args.repeats
    return args


def model_of(name):
    """Returns (the model in eval mode, its input). name: a key of MOST."""
    import numpy as np

    import minidl
    from minidl import nn

    minidl.manual_seed(0)
    rng, (kind, size) = np.random.default_rng(0), name.split()

    def stage(n_in, n_out):
        return [nn.Conv2d(n_in, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()]

    if kind == "gpt":
        length = PAST + 1 if size == "step" else int(size)
        return nn.GPT(256, 256).eval(), rng.integers(0, 256, (1, length))
    if kind == "int8":
        return nn.Sequential(nn.Linear(1024, 1024)).eval(), rng.standard_normal(
            (int(size), 1024)).astype(np.float32)
    if kind == "mlp":
        model, shape = nn.MLP(784, 512, 512, 10), (int(size), 784)
    else:
        model, shape = nn.Sequential(
            *stage(1, 16), nn.MaxPool2d(2), *stage(16, 32), nn.MaxPool2d(2), *stage(32, 64),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)), (int(size), 1, 28, 28)
        with minidl.no_grad():
            model(minidl.randn(64, 1, 28, 28))  # makes running statistics that are not 0 and 1
    return model.eval(), rng.standard_normal(shape).astype(np.float32)


def session(graph, n_threads=1):
    """Returns onnxruntime's session for a traced graph."""
    import numpy as np
    import onnx
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    from minidl.infer.cache import in_order

    names, nodes, constants, pasts = {}, [], [], {}

    def name(x):
        if x not in names:
            names[x] = f"v{len(names)}"
            if getattr(x, "array", None) is not None:
                constants.append(numpy_helper.from_array(x.array, names[x]))
        return names[x]

    def constant(array):
        constants.append(numpy_helper.from_array(array, f"c{len(constants)}"))
        return constants[-1].name

    def node(op, inputs, outputs, **attributes):
        nodes.append(helper.make_node(op, inputs, outputs, **attributes))

    def past(keys, values):
        """Returns the names of two new inputs, the cached keys and values: (B, H, PAST, E) each."""
        keys = in_order(keys)[..., :PAST].swapaxes(-1, -2)
        for array in (keys, values[:, :, :PAST]):
            pasts[f"past{len(pasts)}"] = np.ascontiguousarray(array)
        return list(pasts)[-2:]

    for line in graph.nodes:
        write(line, name, constant, node, past)
    kinds = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
    described = [[helper.make_tensor_value_info(name(v), kinds[v.dtype.name], v.shape)
                  for v in values] for values in (graph.inputs, graph.outputs)]
    described[0] += [helper.make_tensor_value_info(k, TensorProto.FLOAT, v.shape)
                     for k, v in pasts.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "model", *described, constants),
        opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)])
    model.ir_version = min(model.ir_version, 10)
    onnx.checker.check_model(model) if not any(n.domain for n in nodes) else None
    wish = ort.SessionOptions()
    wish.intra_op_num_threads, wish.inter_op_num_threads = n_threads, 1
    wish.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    wish.log_severity_level = 3
    made = ort.InferenceSession(model.SerializeToString(), wish, ["CPUExecutionProvider"])
    inputs = [name(v) for v in graph.inputs]
    return lambda *arrays: made.run(None, dict(zip(inputs, arrays)) | pasts)[0]


def write(line, name, constant, node, past):
    """Adds the ONNX nodes for one line of the graph. name(value) returns the name of a Value.
    constant(array) adds a constant and returns its name. node(...) adds an ONNX node."""
    import numpy as np
    from onnx import TensorProto

    o, y = line.attributes, name(line.output)
    xs = [name(x) for x in line.values]
    plain = {"relu": "Relu", "add": "Add", "mul": "Mul"}
    if line.op in plain:
        node(plain[line.op], xs, [y])
    elif line.op == "linear" and len(line.output.shape) == 2:
        node("Gemm", xs, [y], transB=1)
    elif line.op == "linear":
        product = y if len(xs) == 2 else y + "_"
        node("MatMul", [xs[0], constant(np.ascontiguousarray(line.inputs[1].array.T))], [product])
        if len(xs) == 3:
            node("Add", [product, xs[2]], [y])
    elif line.op == "linear_int8":
        q, scale = (v.array for v in line.inputs[1:3])
        node("DynamicQuantizeLinear", xs[:1], [f"{y}{c}" for c in "qsz"])
        node("MatMulInteger", [f"{y}q", constant(np.ascontiguousarray(q.T)), f"{y}z"], [f"{y}i"])
        node("Cast", [f"{y}i"], [f"{y}f"], to=TensorProto.FLOAT)
        node("Mul", [f"{y}s", constant(scale[:, 0])], [f"{y}w"])
        node("Mul", [f"{y}f", f"{y}w"], [f"{y}p"])
        node("Add", [f"{y}p", xs[3]], [y])
    elif line.op == "conv2d":
        (top, bottom), (left, right) = o["padding"]
        node("Conv", xs, [y], strides=o["stride"], pads=[top, left, bottom, right])
    elif line.op == "batch_norm":
        node("BatchNormalization", [*xs, *map(constant, o["running"])], [y], epsilon=o["eps"])
    elif line.op == "max_pool2d":
        node("MaxPool", xs, [y], kernel_shape=o["kernel"], strides=o["stride"])
    elif line.op == "adaptive_avg_pool2d":
        node("GlobalAveragePool", xs, [y])
    elif line.op in ("flatten", "reshape"):
        node("Reshape", [*xs, constant(np.array(line.output.shape))], [y])
    elif line.op == "embedding":
        node("Gather", xs[::-1], [y])
    elif line.op == "layer_norm":
        node("LayerNormalization", xs, [y], epsilon=o["eps"], axis=-1)
    elif line.op == "gelu":
        node("Gelu", xs, [y], approximate=o["approximate"])
    elif line.op == "cached_attention":
        thirds = [f"{y}{c}" for c in "qkv"]
        node("Split", xs[:1], thirds, axis=2, num_outputs=3)
        kept = past(*(v.array for v in line.inputs[2:4]))
        node("MultiHeadAttention", [*thirds, "", "", "", *kept],
             [y, f"{y}K", f"{y}V"], domain="com.microsoft", num_heads=o["n_heads"])
    elif line.op == "self_attention":
        thirds = [f"{y}{c}" for c in "qkv"]
        node("Split", xs, thirds, axis=2, num_outputs=3)
        node("MultiHeadAttention", thirds, [y], domain="com.microsoft", num_heads=o["n_heads"],
             unidirectional=int(o["is_causal"]))
    else:
        raise NotImplementedError(f"this benchmark cannot write {line.op} as a node of ONNX")


def measure(args):
    """Prints the table. Returns {name: the result of one_model}. NumPy's BLAS has args.threads
    threads."""
    from minidl import cuda

    cuda.set_threads(args.threads)
    result = {}
    print(f"{'':10}{'plan us':>10}{'ort us':>10}{'eager us':>10}{'plan/ort':>10}{'best':>8}"
          f"{'eager/plan':>12}{'compile s':>11}{'again s':>9}{'error':>10}{'plan/ov':>9}"
          f"{'plan/torch':>11}{'read/ort':>9}")
    why = {k: text for k, text in (("ov", missing("openvino")), (
        "torch", missing("torch") if args.compile else "pass --compile")) if text}
    print("".join(f"no {OTHERS[k][0]}: {text}\n" for k, text in why.items()), end="")
    for name in most(args.threads):
        if name.split()[0] not in args.models:
            continue
        result[name] = found = one_model(name, args.repeats, args.threads,
                                         OTHERS.keys() - why.keys())
        us, (cold, again) = found["us"], found["compile_s"]
        print(f"{name:10}{us['plan']:10.1f}{us['ort']:10.1f}{us['eager']:10.1f}"
              f"{found['ratio']:10.2f}{found['best']:8.2f}{found['eager']:12.1f}"
              f"{cold:11.2f}{again:9.3f}{found['error']:10.1e}"
              + "".join(f"{found['others'].get(k, '-'):>{n}{'.2f' * (k in found['others'])}}"
                        for k, n in (("ov", 9), ("torch", 11)))
              + (f"{found['read']:9.2f}" if found["read"] else f"{'-':>9}"), flush=True)
    return result


def most(n_threads):
    return MOST if n_threads == 1 else MOST_OF_TWO


def missing(package):
    """Returns the command that installs a missing package, or None if the package is installed."""
    try:
        importlib.import_module(package)
    except ImportError:
        return f"pip install {package}"


def reading(model):
    """Returns a function that only reads memory. The number of bytes is the size of the weights
    that one step reads. The weights of embeddings do not count, because a step reads only one row
    of an embedding."""
    import numpy as np

    from minidl import nn
    from minidl.infer.program import memory_of

    n_bytes = sum(p.nbytes for m in model.modules() if not isinstance(m, nn.Embedding)
                  for p in m._parameters.values() if p is not None)
    block = memory_of(n_bytes).view(np.float32)
    block[...] = 1
    return block.max


def openvino_of(model, x, n_threads):
    """Returns a function that runs the exported file in OpenVINO."""
    import openvino

    from minidl import infer

    file = infer.export_onnx(infer.trace(model, x)).SerializeToString()
    core = openvino.Core()
    made = core.compile_model(core.read_model(file), "CPU", {
        "INFERENCE_NUM_THREADS": n_threads, "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32"})
    return lambda: made(x)[0]


def torch_of(model, x, n_threads):
    """Returns a function that runs the layers of an mlp or a cnn, compiled by torch.compile."""
    import numpy as np
    import torch

    from minidl import nn

    def twin(m):
        if isinstance(m, nn.Linear):
            made = torch.nn.Linear(m.weight.shape[1], m.weight.shape[0])
        elif isinstance(m, nn.Conv2d):
            made = torch.nn.Conv2d(m.weight.shape[1], m.weight.shape[0], 3, padding=1, bias=False)
        elif isinstance(m, nn.BatchNorm2d):
            made = torch.nn.BatchNorm2d(m.weight.shape[0], eps=m.eps)
        else:
            return {nn.ReLU: torch.nn.ReLU, nn.MaxPool2d: lambda: torch.nn.MaxPool2d(2),
                    nn.AdaptiveAvgPool2d: lambda: torch.nn.AdaptiveAvgPool2d(1),
                    nn.Flatten: torch.nn.Flatten}[type(m)]()
        made.load_state_dict({k: torch.tensor(np.asarray(v)) for k, v in m.state_dict().items()},
                             strict=False)
        return made

    torch.set_num_threads(n_threads)
    layers = [m for _, m in model.named_modules() if not list(m.children())]
    compiled, t = torch.compile(torch.nn.Sequential(*map(twin, layers)).eval()), torch.from_numpy(x)

    def call():
        with torch.inference_mode():
            return compiled(t).numpy()

    return call


def one_model(name, repeats, n_threads, others=()):
    """Returns a dict: the times of a model in us, the ratios of these times, and the plan's error.
    The error is the largest error divided by the largest number of the result. others: keys of
    OTHERS, the further peers."""
    import numpy as np

    import minidl

    model, x = model_of(name)
    plan, theirs, compile_s, memory = (
        step_of(model, x) if name == "gpt step" else
        plan_of(model, x, name.startswith("int8"), n_threads))
    t = x if x.dtype.kind == "i" else minidl.Tensor(x)

    def eager():
        with minidl.no_grad():
            return model(t)

    want = eager().array
    want = want[:, -1:] if name == "gpt step" else want
    if name.startswith("int8"):
        from minidl import infer

        eager, want = plan_of(model, x)[0], infer.quantize(infer.trace(model, x)).run(x)
    ours, peer = (float(np.abs(y.reshape(want.shape) - want).max() / np.abs(want).max())
                  for y in (plan(), theirs()))
    assert ours < 10 * TOLERANCE, f"{name}: the plan differs by {ours}"
    if name.startswith("int8") and peer > 10 * TOLERANCE:
        print(f"{name}: onnxruntime's error is {peer:.1e} of the largest number. Without VNNI it "
              "adds two products in 16 bits and cuts off larger sums")
    else:
        assert peer < 10 * TOLERANCE, f"{name}: onnxruntime differs by {peer}"
    contestants = {"plan": plan, "ort": theirs, "eager": eager}
    if name in READING and n_threads == 1:
        contestants["read"] = reading(model)
    makers = {"ov": openvino_of, "torch": torch_of}
    able = {"ov": ("mlp", "cnn", "gpt 256"), "torch": ("mlp", "cnn")}
    for k in sorted(others):
        if name.startswith(able[k]):
            contestants[k] = makers[k](model, x, n_threads)
            y = contestants[k]()
            wrong = float(np.abs(y.reshape(want.shape) - want).max() / np.abs(want).max())
            assert wrong < 10 * TOLERANCE, f"{name}: {OTHERS[k][0]} differs by {wrong}"
    clock = time.process_time if n_threads == 1 else time.perf_counter
    times = take_turns({k: timed(f, CALLS[name], clock=clock, alone=n_threads > 1)
                        for k, f in contestants.items()}, repeats, warm_up=3)
    return dict(us={k: 1e6 * statistics.median(v) for k, v in times.items()},
                ratio=ratio(times["plan"], times["ort"]), error=ours,
                best=min(times["plan"]) / min(times["ort"]), compile_s=compile_s,
                eager=ratio(times["eager"], times["plan"]), memory=memory,
                read=ratio(times["read"], times["ort"]) if "read" in times else None,
                others={k: ratio(times["plan"], times[k]) for k in OTHERS if k in times})


def plan_of(model, x, quantised=False, n_threads=1):
    """Returns (run_plan, run_ort, compile_s, text). run_plan() runs the plan. run_ort() runs the
    model in onnxruntime. compile_s: the seconds of two compilations of the plan. text: the sizes of
    the plan's memory."""
    from minidl import infer

    graphs = [infer.trace(model, x) for _ in range(2)]
    graphs = [infer.quantize(g) for g in graphs] if quantised else graphs
    theirs, graph = session(graphs[0], n_threads), graphs[1]
    infer.optimise(graph)
    compile_s = []
    for _ in range(2):
        start = time.perf_counter()
        plan = infer.compile(graph, threads=n_threads)
        compile_s.append(time.perf_counter() - start)
    return lambda: plan(x).array, lambda: theirs(x), compile_s, str(plan.memory)


def step_of(model, ids):
    """Returns the same as plan_of, for the last token of ids. The other tokens are in the cache."""
    import numpy as np

    from minidl import infer
    from minidl.infer.decoder import Cached

    decoder = infer.decoder(model)
    compile_s = []
    for _ in range(2):
        decoder.plans.clear()
        start = time.perf_counter()
        decoder.plan(1)
        compile_s.append(time.perf_counter() - start)
    decoder.prefill(ids[:, :PAST])
    kept = [a.copy() for pair in decoder.caches for a in pair]
    token, at = ids[:, PAST:], np.array([PAST])
    theirs = session(infer.trace(Cached(model, list(zip(kept[::2], kept[1::2]))).eval(), token, at))

    def ours():
        decoder.position = PAST
        return decoder.step(token)

    return ours, lambda: theirs(token, at), compile_s, str(decoder.plan(1).memory)


def main():
    args = options()
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError:
        skip(f"it needs {NO_PEER}")
    if args.measure:  # BLAS reads its number of threads only once, so this is a new process
        return write_figures(measure(args), args.measure)
    print(heading(), flush=True)
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):  # so eager's BLAS uses its defaults
        os.environ.pop(name, None)
    figures = measured(sys.executable, __file__, "--repeats", args.repeats, "--threads",
                       args.threads, "--models", *args.models,
                       *["--compile"] * args.compile, **threads(args.threads))
    finish(figures, *report(figures, args.threads), args.out)


def report(figures, n_threads):
    """Returns (bars, rows). A bar is a measured number with its goal. A row is a line of the table
    in docs/figures.md."""
    bars = [bar(f"{name}: plan / onnxruntime", f["ratio"], most(n_threads)[name], at_most=True,
                best=f["best"]) for name, f in figures.items()]
    peer = "onnxruntime, one thread" if n_threads == 1 else "onnxruntime, two threads"
    rows = [row(f"inference, {name}", peer, f"{f['ratio']:.2f} of its time"
                + (f"; only reading the weights: {f['read']:.2f}" if f["read"] else ""), [b])
            for (name, f), b in zip(figures.items(), bars, strict=True)]
    for name, f in figures.items():
        for k, x in f["others"].items():
            bars.append(bar(f"{name}: plan / {OTHERS[k][0]}", x, OTHERS[k][1], at_most=True))
            rows.append(row(f"inference, {name}", OTHERS[k][0], f"{x:.2f} of its time", bars[-1:]))
    for name in [name for name in figures if name.startswith("int8")]:
        bars.append(bar(f"{name}: float32 / plan", figures[name]["eager"], INT8_FASTER))
        rows.append(row(f"inference, {name}", "float32, eager",
                        f"{figures[name]['eager']:.2f} times its speed", bars[-1:]))
    return bars, rows


if __name__ == "__main__":
    main()
