"""How long does Python take to launch a kernel on a GPU? The goal is at most 5 us.

    python benchmarks/bench_launch.py [--rounds 50] [--out F.json]

This benchmark needs no GPU. It records the launches of a GPT's training step (4 layers, AdamW) on
the CPU: kernel, grid, block, arguments. Then it repeats these launches through minidl's code for a
GPU. Stand-ins replace CuPy's arrays, and an empty function replaces the kernel. So only minidl's
Python code is measured, without the time of CuPy and the driver. In an earlier version, a kernel
did not cache what it needs for a launch. On a 2-core Xeon, a launch of add3 then took 28.7 us, and
a launch of the step took 42.7 us on average (BEFORE_US). The whole step took 2475 us.
"""

import argparse
import statistics
import sys
import types

import numpy as np
from common import bar, device_option, finish, heading, row, timed

BEFORE_US = 42.7  # mean microseconds of a launch, at commit 91092b5, on a Xeon with 2 cores
VOCAB, CONTEXT, LAYERS, HEADS, WIDTH, BATCH = 65, 32, 4, 4, 64, 4


class Array:
    """The part of a CuPy array that the launcher reads. Reading an attribute takes as long as in
    CuPy."""

    __slots__ = ("shape", "dtype", "itemsize", "strides", "size", "flags", "data", "device")
    _flags = types.SimpleNamespace(c_contiguous=True)
    _data = types.SimpleNamespace(ptr=256)
    _device = types.SimpleNamespace(id=0)

    def __init__(self, a):
        self.shape, self.dtype, self.itemsize, self.size = a.shape, a.dtype, a.itemsize, a.size
        self.flags, self.data, self.device = self._flags, self._data, self._device
        self.strides = a.strides


class Module:
    """A RawModule whose kernels do nothing."""

    def __init__(self, **made):
        pass

    def get_function(self, name):
        return lambda grid, block, args, *, shared_mem=0: None


def fake_cupy():
    cupy = types.ModuleType("cupy")
    cupy.ndarray, cupy.RawModule = Array, Module
    cupy.cuda = types.SimpleNamespace(runtime=types.SimpleNamespace(getDevice=lambda: 0))
    return cupy


def recorded_step():
    """Returns [(kernel, grid, block, args), ...] of one training step."""
    import minidl
    from minidl import nn, optim
    from minidl.cuda.run import Kernel
    from minidl.nn import functional as F

    minidl.manual_seed(0)
    model = nn.GPT(VOCAB, CONTEXT, LAYERS, HEADS, WIDTH, dropout=0.1)
    optimizer = optim.AdamW(model.parameters())
    ids = np.random.default_rng(0).integers(0, VOCAB, (BATCH, CONTEXT + 1))
    launches, launch = [], Kernel.__call__

    def recording(self, grid, block, args, **options):
        launches.append((self, grid, block, args))
        launch(self, grid, block, args, **options)

    Kernel.__call__ = recording
    loss = F.cross_entropy(model(ids[:, :-1]).reshape(-1, VOCAB),
                           minidl.tensor(ids[:, 1:]).reshape(-1))
    loss.backward()
    optimizer.step()
    Kernel.__call__ = launch
    return launches


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    device_option(parser, "it measures the Python part of a launch on a GPU, "
                  "and needs no GPU")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--out", help="JSON file")
    args = parser.parse_args()
    print(heading())
    launches = recorded_step()
    sys.modules["cupy"] = fake_cupy()
    from minidl import cuda

    step = [(kernel, grid, block, tuple(Array(a) if isinstance(a, np.ndarray) else a
                                        for a in given)) for kernel, grid, block, given in launches]
    a, b, c, out = (Array(np.empty(1000, np.float32)) for _ in range(4))
    add3 = cuda.kernel("add3.cu", "add3")

    def all_of_them():
        for kernel, grid, block, given in step:
            kernel(grid, block, given)

    works = {"add3, 4 arrays and a number": (lambda: add3(4, 256, (out, a, b, c, 1000)), 1000),
             f"the {len(step)} launches of a step": (all_of_them, 10)}
    figures = {}
    for name, (work, calls) in works.items():
        work()
        us = [1e6 * timed(work, calls)() for _ in range(args.rounds)]
        figures[name] = {"least_us": min(us), "median_us": statistics.median(us)}
        print(f"{name:32} least {min(us):8.2f} us   median {statistics.median(us):8.2f} us")
    one, all_ = figures.values()
    mean = all_["least_us"] / len(step)
    print(f"a launch of the step, on average {mean:.2f} us")
    figures["a launch of a step, on average"] = {"least_us": mean}
    bars = [bar("Python time of a launch, us", one["least_us"], 5, at_most=True),
            bar("the same, the average of a GPT's step, us", mean, 5, at_most=True),
            bar("a step's launches, time by that before", mean / BEFORE_US, 1 / 3, at_most=True)]
    rows = [row("our Python time of a kernel's launch on a GPU, in a GPT's step, us",
                f"{BEFORE_US} at commit 91092b5", f"{mean:.2f}", bars)]
    finish(figures, bars, rows, args.out)


if __name__ == "__main__":
    main()
