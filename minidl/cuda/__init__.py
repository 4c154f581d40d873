"""Runs .cu files on arrays: on a GPU through CuPy, on the CPU through a C++ compiler.

    run.py    minidl.kernel(file, name)(grid, block, args): where the device is chosen
    gpu.py    through CuPy
    host/     on the CPU: read the file, make C++ of it, compile, launch
    check/    the same with every access watched: races, stray accesses, in sentences
    nvrtc.py  what NVIDIA's own compiler says, without a GPU
    tool.py   the command `minidl kernel`

The CPU side of CUDA itself is in kernels/host/.
"""

from minidl.cuda.host.includes import KERNELS, KernelError
from minidl.cuda.run import Kernel, check, kernel, n_threads, set_threads
