"""The parts of each step that gpu_day.py runs on a GPU, and their rows.

    PARTS = {step: a function of the size, "usual" or "small", that returns [(name, part)]}
    part()  ->  [{"what": ..., column: value}]          each dict is a row of the step's table

A part measures with existing tools: `minidl kernel bench`, bench_train_step.py, pytest. If a part
raises an error, gpu_day.py writes a row with the error. If something cannot be measured here, its
row gives the reason.
Test: tests/benchmarks/test_gpu_day.py
"""

import functools
import importlib.metadata
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
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
    """Returns rows with the device's name, and with its properties that explain times."""
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
    """Measures the GPU's rates. Returns {"bandwidth": bytes per second, "float32" and "float16":
    operations per second}. Returns None on the stand-in for CuPy, where these rates mean
    nothing."""
    from minidl.profile import peaks

    if on_stand_in():
        return None
    return peaks.measure("cuda", n_bytes=1 << 28, dtypes=("float32", "float16"))


# -- kernels

# These are the shares that the headers of kernels/*.cu predict. For most kernels it is a share of a
# copy's bandwidth. For kernels of products it is a share of the GPU's peak, by float32 lanes or by
# tensor cores. The shares are for float32, except for kernels that take only float16.
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
    "matmul_v1": "5%", "matmul_v2": "at most 25%", "matmul_v3": "about 50%",
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
    """Returns a part for each bench of `minidl kernel bench`. The parts cover all files
    kernels/*.cu."""
    from minidl.cli import kernel_bench

    def sizes(name):
        usual = kernel_bench.SIZES[name][1]
        return kernel_bench.SMALL[len(usual)] if size == "small" else usual

    return [(name, functools.partial(kernel_rows, name, sizes(name), 1 if size == "small" else 5))
            for name in sorted(kernel_bench.SIZES)]


def kernel_rows(name, size, repeats):
    """Returns a row for each rung. The row has the name of the rung's slowest kernel. After these
    rows there is a row for each other kernel that a rung launches."""
    from minidl.cli import kernel_bench

    rows, others = [], {}
    for rung in kernel_bench.rungs(name, size, "cuda", repeats):
        file = Path(rung.launches[0].kernel.path).name
        rows.append({"what": rung.name + rung.others, "file": file,
                     "size": " x ".join(map(str, size)), "right": verdict(rung),
                     "error": rung.error, "us": 1e6 * rung.time_s, **speed(rung),
                     "predicted": EXPECTED.get(rung.name, "")})
        for launch in rung.launches[1:]:
            kernel = launch.kernel
            others.setdefault(kernel.name, {
                "what": kernel.name, "file": Path(kernel.path).name, "right": verdict(rung),
                "us": 1e6 * launch.time_s, "GB/s": launch.n_bytes / launch.time_s / 1e9,
                "predicted": EXPECTED.get(kernel.name, "")})
    mains = {row["what"].split()[0] for row in rows}
    return rows + [row for kernel, row in others.items() if kernel not in mains]


def verdict(rung):
    return "right" if rung.right else "WRONG"


def speed(rung):
    """Returns the columns for a rung: its speed, the name of the peer, and its share. The share is
    the rung's speed divided by the peer's speed. The peer is a copy, or cuBLAS in the same dtype. A
    depthwise convolution is compared with a copy, because moving bytes limits its speed. On the
    stand-in for CuPy the share is empty, because it means nothing."""
    if not rung.flop or rung.name.endswith("_depthwise"):
        return {"GB/s": rung.n_bytes / rung.time_s / 1e9, "of": "a copy",
                "share": f"{rung.copy_s / rung.time_s:.0%}" if rates() else ""}
    half = any(rung.name.endswith(ending) for ending in ("_mma", "matmul_v4", "_v5"))
    dtype, flops = "float16" if half else "float32", rung.flop / rung.time_s
    return {"GFLOP/s": flops / 1e9, "of": f"cuBLAS {dtype}",
            "share": f"{flops / rates()[dtype]:.0%}" if rates() else ""}


# -- a training step

SIZES = {"usual": dict(), "small": dict(layers=1, width=32, heads=2, context=8, batch=2, vocab=16)}
ROUNDS = {"usual": 15, "small": 1}
N_LOSSES = 3  # steps whose losses are compared before timing


def step(size):
    return [(name, functools.partial(part, size)) for name, part in (
        ("float32", eager), ("half with master weights", half), ("CUDA graph", graphs))]


def gpt_and_batch(size):
    """Returns the sizes of bench_train_step.py, and the ids of a batch: (rows, context + 1)."""
    from bench_train_step import Size

    gpt = Size(**SIZES[size])
    return gpt, np.random.default_rng(0).integers(0, gpt.vocab, (gpt.batch, gpt.context + 1))


def minidl_step(size, level="O0"):
    """Returns (model, optimizer, step). step() does one training step and returns the loss, which
    is on the GPU."""
    import minidl
    from minidl import nn, optim
    from minidl.nn import functional as F
    from minidl.precision import amp

    gpt, ids = gpt_and_batch(size)
    minidl.manual_seed(0)
    model = nn.GPT(gpt.vocab, gpt.context, gpt.layers, gpt.heads, gpt.width).to("cuda")
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, scaler = amp.initialize(model, optimizer, level)
    x, y = (minidl.tensor(a.copy(), device="cuda") for a in (ids[:, :-1], ids[:, 1:]))

    def run():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).reshape(-1, gpt.vocab), y.reshape(-1))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return model, optimizer, run


def torch_step(size, model, half, device="cuda"):
    """Returns a function without arguments. It does one training step in PyTorch, with the weights
    of minidl's model. half: if True, uses autocast and a GradScaler."""
    import torch
    import torch_gpt
    from torch.nn import functional as F

    gpt, ids = gpt_and_batch(size)
    weights = {k: v.cpu().numpy().astype(np.float32) for k, v in model.state_dict().items()}
    theirs = torch_gpt.make(weights, gpt.vocab, gpt.context, gpt.layers, gpt.heads, gpt.width)
    theirs = theirs.to(device)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, enabled=half)
    x, y = (torch.from_numpy(a.copy()).to(device) for a in (ids[:, :-1], ids[:, 1:]))

    def run():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16, enabled=half):
            loss = F.cross_entropy(theirs(x).view(-1, gpt.vocab), y.reshape(-1))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return run


def eager(size):
    return beside_torch(size, "O0")


def half(size):
    return beside_torch(size, "O2")


def beside_torch(size, level):
    """Runs the first steps of minidl and PyTorch, to compare their losses. Then times both
    libraries in turns. Returns the rows, which show times and losses."""
    from common import NO_TORCH, torch_runs_on

    model, _, ours = minidl_step(size, level)
    contestants, rows = {"minidl": ours}, []
    if on_stand_in():
        rows = nothing("PyTorch", "left out: it does not run on the stand-in for CuPy")
    elif torch_runs_on("cuda"):
        contestants["PyTorch"] = torch_step(size, model, level == "O2")
    else:
        rows = nothing("PyTorch", f"left out: {NO_TORCH}, or not for a GPU")
    losses = {name: [float(work()) for _ in range(N_LOSSES)] for name, work in contestants.items()}
    return timed_rows(size, contestants, losses, f", {level}") + rows


def timed_rows(size, contestants, losses, what):
    times = take_turns({name: timed(work, device="cuda") for name, work in contestants.items()},
                       ROUNDS[size], warm_up=min(ROUNDS[size], 3))
    peer = times.get("PyTorch")
    return [{"what": name + what, "ms": 1e3 * statistics.median(values),
             "least ms": 1e3 * min(values),
             "of PyTorch's time": statistics.median(values) / statistics.median(peer) if peer
             else "", "losses": [f"{loss:.4f}" for loss in losses[name]]}
            for name, values in times.items()]


def graphs(size):
    """Runs a step's hundreds of launches as one CUDA graph. Returns the rows."""
    from minidl.cuda.cuda_graph import graphed

    if on_stand_in():
        return nothing("CUDA graph", "no figure: the stand-in for CuPy has no CUDA graphs")
    rows = []
    for level in ("O0", "O2"):
        run = graphed(minidl_step(size, level)[2])
        losses = {"minidl": [float(run()) for _ in range(N_LOSSES)]}
        rows += timed_rows(size, {"minidl": run}, losses, f", {level}, as one CUDA graph")
    return rows


# -- memory


def memory(size):
    return [("ledger and pool", functools.partial(ledger_and_pool, size, "O0")),
            ("ledger and pool, half", functools.partial(ledger_and_pool, size, "O2"))]


def ledger_and_pool(size, level):
    """Returns two rows. The first row is measured between two steps. It has the ledger's bytes, and
    the bytes in use in CuPy's pool. The second row is measured at the peak of a step. It has the
    ledger's bytes, and the bytes that the pool took from the device. The pool takes more than the
    peak of the bytes in use, because there are gaps between arrays."""
    from minidl import memory

    if on_stand_in():
        return nothing(level, "no figure: the stand-in for CuPy has no pool that counts bytes")
    pool = cupy().get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.used_bytes()
    model, optimizer, run = minidl_step(size, level)
    for _ in range(2):
        run()
    held = sum(memory.totals(model, optimizer).values())
    with memory.record(model, optimizer) as ledger:
        run()
    used, total = pool.used_bytes() - before, pool.total_bytes()
    return [{"what": f"{level}, between two steps", "ledger, bytes": held, "pool, bytes": used,
             "pool / ledger": used / held},
            {"what": f"{level}, at the peak of a step", "ledger, bytes": ledger.peak_bytes,
             "pool, bytes": total, "pool / ledger": total / ledger.peak_bytes}]


# -- parallel


def parallel(size):
    return [(f"processes {n}", functools.partial(data_parallel, size, n)) for n in (1, 2)]


def data_parallel(size, n):
    """Runs a data-parallel step of n processes on one GPU. Each process has its part of one batch.
    The losses must be the same for every n."""
    from minidl.cli.machine import find_mpiexec

    what = f"{n} process{'es' * (n > 1)}"
    if not find_mpiexec() or not is_installed("mpi4py"):
        return nothing(what, "left out: it needs mpi4py and an MPI, pip install 'minidl[mpi]'")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        ran(sys.executable, "-m", "minidl.cli.main", "run", "-n", n, __file__, size, out)
        return [{"what": what, **json.loads(out.read_text())}]


def rank_of_a_step(size, out):
    """Runs in each process of `data_parallel`. Rank 0 writes the row."""
    import minidl
    from minidl import nn, optim
    from minidl.comm import Ledger, average, world
    from minidl.cuda import synchronize
    from minidl.nn import functional as F
    from minidl.parallel import DataParallel

    gpt, ids = gpt_and_batch(size)
    t = Ledger(world())
    own = np.array_split(ids, t.size)[t.rank]
    minidl.manual_seed(0)
    net = nn.GPT(gpt.vocab, gpt.context, gpt.layers, gpt.heads, gpt.width).to("cuda")
    optimizer, model = optim.AdamW(net.parameters(), lr=1e-3), DataParallel(net, t)
    x, y = (minidl.tensor(a.copy(), device="cuda") for a in (own[:, :-1], own[:, 1:]))

    def run():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).reshape(-1, gpt.vocab), y.reshape(-1))
        loss.backward()
        optimizer.step()
        return loss

    losses = [average.mean(t, np.array([run().item()])).item() for _ in range(N_LOSSES)]
    before = t.bytes_sent
    times = [timed(run, device="cuda")() for _ in range(ROUNDS[size])]
    synchronize()
    row = {"way": model.way, "ms": 1e3 * statistics.median(times),
           "bytes sent a step": (t.bytes_sent - before) // ROUNDS[size],
           "losses": [f"{loss:.4f}" for loss in losses]}
    model.close()
    if t.rank == 0:
        Path(out).write_text(json.dumps(row))


def is_installed(package):
    return any(d.metadata["Name"] == package for d in importlib.metadata.distributions())


def ran(*command, check=True, limit_s=None):
    """Runs a process without stdin. Returns its output. After limit_s seconds, interrupts the
    process, as Ctrl-C does."""
    with subprocess.Popen([str(word) for word in command], cwd=ROOT, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            text, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            text, _ = process.communicate(timeout=GRACE_S)
    print(text, flush=True)
    if check and process.returncode:
        raise RuntimeError(f"{command[0]} ... ended with status {process.returncode}")
    return text


# -- sanitizer

# Each kernel file stands for one topic: rows and shared memory, atomics, tables of addresses,
# tensor cores.
WATCHED = ("softmax", "embedding_grad", "adamw", "matmul")
TOOLS = ("memcheck", "racecheck")


def sanitizer(size):
    if not shutil.which("compute-sanitizer"):
        why = "left out: compute-sanitizer is not on the PATH (it comes with NVIDIA's CUDA toolkit)"
        return [("compute-sanitizer", lambda: nothing("compute-sanitizer", why))]
    return [(f"{tool} {name}", functools.partial(watched, tool, name))
            for name in WATCHED for tool in TOOLS]


def watched(tool, name):
    """Runs a sanitizer tool with small sizes, because the tool makes a kernel a hundred times
    slower."""
    from minidl.cli import kernel_bench

    sizes = kernel_bench.SMALL[len(kernel_bench.SIZES[name][1])]
    text = ran("compute-sanitizer", "--tool", tool, sys.executable, "-m", "minidl.cli.main",
               "kernel", "bench", name, "--device", "cuda", "--repeats", 1, "--size", *sizes,
               check=False)
    return [{"what": f"{tool} {name}", "result": verdict_of_sanitizer(text)}]


def verdict_of_sanitizer(text):
    """Returns the tool's last sentence, such as 'ERROR SUMMARY: 0 errors'."""
    found = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: .*", text)
    if not found or not re.search(r"^Wrong: 0\.", text, re.M):
        return f"failed: {' '.join(found) or 'no summary'}; a result is wrong, or there is none"
    return found[-1]


# -- tests

SLICE_S = 100  # seconds for one folder. SLICE_S + GRACE_S is below a part's limit (gpu_day.py)
GRACE_S = 8  # seconds for pytest to write its results after Ctrl-C
END = time.monotonic() + float(os.environ.get("GPU_DAY_LEFT_S", "inf"))  # when this process ends


def tests(size):
    """Returns parts that run pytest -m gpu. Each part runs one folder of tests/. The size "small"
    runs only two files. A part interrupts pytest before the time is over, so that the results until
    then count."""
    if size == "small":
        files = ["tests/cuda/test_philox.py", "tests/cuda/test_index_check.py"]
        return [(file.removeprefix("tests/"), functools.partial(tested, [file])) for file in files]
    from tests.conftest import _FOR_A_GPU

    folders = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        if re.search(_FOR_A_GPU, file.read_text()):
            folders.setdefault(file.parent.relative_to(ROOT / "tests"), []).append(str(file))
    # These folders run first, because the time may end before the other folders run.
    first = ("cuda", "ops", "precision", "optim")
    order = sorted(folders, key=lambda f: first.index(str(f)) if str(f) in first else len(first))
    return [(str(folder), functools.partial(tested, folders[folder])) for folder in order]


def tested(files):
    """Runs the tests in these files. Returns a row with the numbers of passed and skipped tests,
    and a row for each failed test."""
    left_s = min(SLICE_S, END - time.monotonic() - 2 * GRACE_S)
    if left_s < GRACE_S:
        return nothing(f"{Path(files[0]).parent}, {len(files)} files", "left out: no time is left")
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        ran(sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider",
            "-p", "no:xdist", f"--basetemp={folder}/tmp", f"--junitxml={report}", *files,
            check=False, limit_s=left_s)
        rows = test_rows(files, ElementTree.parse(report).getroot())
    if time.monotonic() - begin > left_s:
        rows[0]["result"] = f"interrupted after {left_s:.0f} s: the others did not run"
    return rows


def test_rows(files, report):
    """Returns rows for pytest's XML report. The first row has the numbers of passed, failed and
    skipped tests. Then there is one row for each failed test. The numbers are read from
    <testsuite>. The <testcase> elements are not counted, because an interrupted test also has an
    element, which looks like a test that has passed."""
    name = files[0] if len(files) == 1 else f"{Path(files[0]).parent}, {len(files)} files"
    suite = next(report.iter("testsuite"), None)
    if suite is None or suite.get("tests") == "0":
        raise RuntimeError(f"pytest found no test for a GPU in {name}")
    total, failed, errors, n_skipped = (int(suite.get(key)) for key in (
        "tests", "failures", "errors", "skipped"))
    rows = [{"what": name.replace(f"{ROOT}/", ""), "passed": total - failed - errors - n_skipped,
             "failed": failed + errors, "skipped": n_skipped, "seconds": float(suite.get("time"))}]
    for case in report.iter("testcase"):
        for found in (*case.findall("failure"), *case.findall("error")):
            message = found.get("message", "").split("\n")[0][:200]
            rows.append({"what": f"{case.get('classname')}::{case.get('name')}",
                         "result": f"failed: {message}"})
    return rows


PARTS = {"machine": machine, "kernels": kernels, "step": step, "memory": memory,
         "parallel": parallel, "sanitizer": sanitizer, "tests": tests}

if __name__ == "__main__":  # this process is a rank
    rank_of_a_step(*sys.argv[1:])
