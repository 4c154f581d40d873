"""What gpu_day.py does on a GPU: the parts of each step, and their rows.

    PARTS = {step: function of the size, "usual" or "small", that returns [(name, part)]}
    part()  ->  [{"what": ..., column: value}]          a row of the step's table each

A part measures with what is there for it: `minidl kernel bench`, bench_train_step.py, pytest. It may
raise: gpu_day.py makes a row of that. What cannot be measured here is a row that says why.
Test: tests/benchmarks/test_gpu_day.py
"""

import functools
import importlib.metadata
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from common import take_turns, timed

ROOT = Path(__file__).resolve().parents[1]
NO_FIGURE = "no figure: this CuPy is the stand-in of tests/strict_cupy, and has no GPU"


@functools.cache
def cupy():
    from minidl.backend import import_cupy

    return import_cupy()


def on_stand_in():
    return hasattr(cupy(), "stand_in")


def nothing(what, why):
    return [{"what": what, "result": why}]


# -- machine


def machine(size):
    return [("versions", versions), ("device", device), ("peaks", peaks)]


def versions():
    rows = [{"what": "Python", "value": platform.python_version()},
            {"what": "system", "value": platform.platform()}]
    for name in ("numpy", "cupy", "torch", "mpi4py", "pytest"):
        names = [d.metadata["Name"] for d in importlib.metadata.distributions()
                 if re.fullmatch(rf"{name}(-cuda\d+x)?", d.metadata["Name"] or "")]
        found = [f"{each} {importlib.metadata.version(each)}" for each in dict.fromkeys(names)]
        rows.append({"what": name, "value": ", ".join(found) or "not installed"})
    return rows


def device():
    """Its name, and the numbers of it that explain a time."""
    from common import gpu

    runtime, rows = cupy().cuda.runtime, [{"what": "device", "value": gpu()}]
    properties = runtime.getDeviceProperties(0)
    for key in ("major", "minor", "multiProcessorCount", "clockRate", "memoryClockRate",
                "memoryBusWidth", "l2CacheSize", "totalGlobalMem", "sharedMemPerMultiprocessor"):
        if key in properties:
            rows.append({"what": key, "value": properties[key]})
    rows.append({"what": "CUDA runtime", "value": runtime.runtimeGetVersion()})
    if hasattr(runtime, "driverGetVersion"):
        rows.append({"what": "CUDA of the driver", "value": runtime.driverGetVersion()})
    return rows


def peaks():
    names = {"bandwidth": "copy, GB/s", "float32": "cuBLAS float32, GFLOP/s",
             "float16": "cuBLAS float16, GFLOP/s"}
    return [{"what": name, "value": rates()[key] / 1e9} if rates() else
            {"what": name, "result": NO_FIGURE} for key, name in names.items()]


@functools.cache
def rates():
    """{"bandwidth", "float32", "float16": a second}, or None where they mean nothing."""
    from minidl.profile import peaks

    if on_stand_in():
        return None
    return peaks.measure("cuda", n_bytes=1 << 28, dtypes=("float32", "float16"))


# -- kernels

# What the headers of kernels/*.cu predict, of a copy's bandwidth or, for products, of what the
# lanes or the tensor cores can do: in float, but for the kernels that take halves alone.
EXPECTED = {
    "add3": "90%", "add3_packs": "90 to 95%", "gelu_packs": "90%", "relu": "50%",
    "relu_backward": "50%", "relu_packs": "90%", "relu_backward_packs": "90%",
    "softmax_v2": "60%", "softmax_v3": "85%", "softmax_v4": "85 to 90%", "softmax_v5": "80%",
    "layer_norm_v2": "60%", "layer_norm_v3": "85 to 90%", "layer_norm_v4": "85 to 90%",
    "layer_norm_v5": "80%", "layer_norm_param_grads": "60%", "layer_norm_param_grads_packs": "85%",
    "batch_norm_eval": "50%", "batch_norm_v1": "below 5%", "batch_norm_backward_v1": "below 5%",
    "cross_entropy_v2": "80%", "cross_entropy_v4": "85%", "cross_entropy_v5": "85%",
    "cross_entropy_backward_v2": "70%", "cross_entropy_backward_v5": "85%",
    "max_pool": "50%", "max_pool_backward": "50%", "avg_pool": "50%", "avg_pool_backward": "50%",
    "matmul_v1": "5%", "matmul_v2": "at most a quarter", "matmul_v3": "about half",
    "matmul_v4": "50 to 60%", "attention_naive": "3%", "attention_shared": "15%",
    "attention_warp": "25%", "attention_row_dot": "60%", "attention_grad_q_naive": "3%",
    "attention_grad_q_shared": "10 to 15%", "attention_grad_q_warp": "20%",
    "attention_grad_kv_naive": "3%", "attention_grad_kv_shared": "10 to 15%",
    "attention_grad_kv_warp": "20%", "attention_mma": "40 to 50%", "attention_grad_q_mma": "40%",
    "attention_grad_kv_mma": "40%", "conv_v1": "5%", "conv_v2": "10%", "conv_v3": "40%",
    "conv_v4": "60%", "conv_v5": "40%", "conv_winograd": "80%", "conv_depthwise": "60 to 80%",
    "conv_weight_v1": "below 5%", "conv_weight_v2": "10%", "conv_weight_v3": "40%",
    "conv_weight_v5": "40%", "conv_weight_depthwise": "30%", "dropout": "90%",
    "dropout_naive": "15 to 25%", "embedding_grad_owners": "50%",
    "embedding_grad_packs": "60 to 70%", "adamw_many": "90%", "sgd_many": "90%",
    "lamb_moments_many": "85 to 90%", "lamb_update_many": "85 to 90%", "sum_squares_many": "90%",
    "unscale_check_many": "90%", "count_bad_many": "90%", "pack_many": "90%", "unpack_many": "90%",
    "philox_bits": "20 to 30%", "index_check": "80%", "int8_linear_v2": "5%",
    "int8_linear_v3": "25%", "absmax_warps": "50 to 60%", "quantize_warps": "40%",
    "dequantize_warps": "40%", "absmax_packs": "85%", "quantize_packs": "85%",
    "dequantize_packs": "85%", "count_above_warps": "50%", "compact_warps": "50%",
    "center": "40 to 60%", "softmax_online": "40 to 60%", "loss_scale_factor": "none",
    "loss_scale_update": "none",
}


def kernels(size):
    """A part for each bench of `minidl kernel bench`; together they have all of kernels/*.cu."""
    from minidl.cli import kernel_bench

    def sizes(name):
        usual = kernel_bench.SIZES[name][1]
        return kernel_bench.SMALL[len(usual)] if size == "small" else usual

    return [(name, functools.partial(kernel_rows, name, sizes(name), 1 if size == "small" else 5))
            for name in sorted(kernel_bench.SIZES)]


def kernel_rows(name, size, repeats):
    """A row for each rung, named by its slowest kernel, then one for each kernel that it launches
    beside that and that has no row."""
    from minidl.cli import kernel_bench

    rows, others = [], {}
    for rung in kernel_bench.rungs(name, size, "cuda", repeats):
        rows.append({"what": rung.name + rung.others, "file": Path(rung.launches[0].kernel.path).name,
                     "size": " x ".join(map(str, size)), "right": verdict(rung), "error": rung.error,
                     "us": 1e6 * rung.time_s, **speed(rung), "predicted": predicted(rung.name)})
        for launch in rung.launches[1:]:
            kernel = launch.kernel
            others.setdefault(kernel.name, {
                "what": kernel.name, "file": Path(kernel.path).name, "right": verdict(rung),
                "us": 1e6 * launch.time_s, "GB/s": launch.n_bytes / launch.time_s / 1e9,
                "predicted": predicted(kernel.name)})
    mains = {row["what"].split()[0] for row in rows}
    return rows + [row for kernel, row in others.items() if kernel not in mains]


def predicted(kernel):
    return EXPECTED.get(kernel, "")


def verdict(rung):
    return "right" if rung.right else "WRONG"


def speed(rung):
    """The columns of a rung's speed, and its share: of a copy, or of cuBLAS in its dtype. A
    convolution of one channel a group is bound by bytes. On the stand-in a share means nothing."""
    if not rung.flop or rung.name.endswith("_depthwise"):
        return {"GB/s": rung.n_bytes / rung.time_s / 1e9, "of": "a copy",
                "share": f"{rung.copy_s / rung.time_s:.0%}" if rates() else ""}
    half = any(rung.name.endswith(ending) for ending in ("_mma", "matmul_v4", "_v5"))
    dtype, flops = "float16" if half else "float32", rung.flop / rung.time_s
    return {"GFLOP/s": flops / 1e9, "of": f"cuBLAS {dtype}",
            "share": f"{flops / rates()[dtype]:.0%}" if rates() else ""}


PARTS = {"machine": machine, "kernels": kernels}
