"""Runs .cu files on arrays: on a GPU through CuPy, on the CPU through a C++ compiler.

    run.py    launches a kernel: minidl.kernel(file, name)(grid, block, args)
    gpu.py    launches a kernel through CuPy
    host/     launches a kernel on the CPU: translates the file to C++, compiles and runs it
    checks/   does the same as host/, and finds races and accesses outside an array
    nvrtc.py  compiles with NVIDIA's own compiler, without a GPU, in a separate process
              (nvrtc_process.py)
    tool.py   the command `minidl kernel`
    device.py         finds and chooses GPUs. Its functions are named as in torch.cuda
    host_memory.py    makes pinned memory, and copies arrays on a separate stream
    index_check.py    checks indices on a GPU. The host does not wait for the GPU
    dispatch.py       chooses between a kernel and NumPy. No other file chooses
    launch.py         launches a kernel over elements, or over many arrays
    rows.py           chooses the version of a kernel that works on rows
    grad_norm.py      computes the norm of many arrays in one launch
    unscale_check.py  unscales gradients and checks that all are finite, in one launch
    philox.py         makes random bits on a GPU, the same bits that NumPy makes
    fuse.py           makes one kernel from a chain of elementwise ops
    cuda_graph.py     runs a training step as one launch
    cublas.py         multiplies matrices on a GPU by calls of cuBLAS, NVIDIA's BLAS

kernels/host/ holds CUDA's own functions and variables for the CPU.
"""

from minidl.cuda.device import (
    current_device, device_count, get_float32_matmul_precision, is_available, memory_allocated,
    memory_reserved, set_device, set_float32_matmul_precision, synchronize,
)
from minidl.cuda.host.includes import KERNELS, KernelError
from minidl.cuda.run import Kernel, check, is_watched, kernel, n_threads, set_threads
