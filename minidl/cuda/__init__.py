"""Runs .cu files on arrays: on a GPU through CuPy, on the CPU through a C++ compiler.

    run.py    minidl.kernel(file, name)(grid, block, args): where the device is chosen
    gpu.py    through CuPy
    host/     on the CPU: the file is read, becomes C++, is compiled, launched
    checks/   the same with every access checked: races, stray accesses
    nvrtc.py  what NVIDIA's own compiler says, without a GPU
    tool.py   the command `minidl kernel`

The CPU side of CUDA itself is in kernels/host/.
"""

from minidl.cuda.host.includes import KERNELS, KernelError
from minidl.cuda.run import Kernel, check, kernel, n_threads, set_threads
