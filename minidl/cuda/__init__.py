"""Runs .cu files on arrays: on a GPU through CuPy, on the CPU through a C++ compiler.

    run.py    minidl.kernel(file, name)(grid, block, args): the arrays decide the device
    gpu.py    launches a kernel through CuPy
    host/     launches a kernel on the CPU: translates the file to C++, compiles and runs it
    checks/   does the same, and checks every access: finds races and accesses outside an array
    nvrtc.py  compiles with NVIDIA's own compiler, without a GPU, in a process of its own
              (nvrtc_process.py)
    tool.py   the command `minidl kernel`. minidl/text.py lays out its tables
    device.py         finds and chooses GPUs: the functions of torch.cuda
    host_memory.py    pinned memory, and copies on a stream of their own
    index_check.py    checks indices on a GPU without waiting for it
    dispatch.py       chooses between a kernel and NumPy. No other file chooses
    launch.py         a launch over elements, and a launch over many arrays
    rows.py           kernels that work on rows: which version runs on which device
    grad_norm.py      the norm of many arrays in one launch
    unscale_check.py  unscales gradients and checks that all are finite, in one launch
    philox.py         random bits made on a GPU, equal to NumPy's
    fuse.py           a chain of elementwise ops as one kernel, without writing CUDA
    cuda_graph.py     a training step as one launch
    cublas.py         matrix products on a GPU by NVIDIA's BLAS, called directly

kernels/host/ holds CUDA's own functions and variables for the CPU.
"""

from minidl.cuda.device import (
    current_device, device_count, get_float32_matmul_precision, is_available, memory_allocated,
    memory_reserved, set_device, set_float32_matmul_precision, synchronize,
)
from minidl.cuda.host.includes import KERNELS, KernelError
from minidl.cuda.run import Kernel, check, is_watched, kernel, n_threads, set_threads
