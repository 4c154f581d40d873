"""Runs .cu files on arrays: on a GPU through CuPy, on the CPU through a C++ compiler.

    run.py    minidl.kernel(file, name)(grid, block, args): where the device is chosen
    gpu.py    through CuPy
    host/     on the CPU: the file is read, becomes C++, is compiled, launched
    checks/   the same with every access checked: races, stray accesses
    nvrtc.py  what NVIDIA's own compiler says, without a GPU; nvrtc_process: it runs apart
    tool.py   the command `minidl kernel`; text.py: its tables
    device.py         which GPUs there are, which one is used: the functions of torch.cuda
    host_memory.py    pinned memory, and copies on a stream of their own
    index_check.py    indices on a GPU, checked without waiting for it
    dispatch.py       kernel or NumPy: the only place that chooses
    launch.py         a launch over elements, and over many arrays at once
    rows.py           kernels that work on rows: which rung runs on which device
    grad_norm.py      the norm of many arrays in one launch
    unscale_check.py  gradients unscaled, and whether all are finite, in one launch
    philox.py         random bits on a GPU, the same as NumPy's
    fuse.py           a chain of elementwise ops as one kernel, without writing CUDA
    cuda_graph.py     a training step as one launch

The CPU side of CUDA itself is in kernels/host/.
"""

from minidl.cuda.device import (
    current_device, device_count, get_float32_matmul_precision, is_available, memory_allocated,
    memory_reserved, set_device, set_float32_matmul_precision, synchronize,
)
from minidl.cuda.host.includes import KERNELS, KernelError
from minidl.cuda.run import Kernel, check, is_watched, kernel, n_threads, set_threads
