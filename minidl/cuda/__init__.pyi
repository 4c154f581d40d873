"""minidl.cuda as editors see it. `make stubs` writes this file."""

from minidl.cuda import device as device
from minidl.cuda import host as host
from minidl.cuda import run as run
from minidl.cuda.device import current_device as current_device
from minidl.cuda.device import device_count as device_count
from minidl.cuda.device import get_float32_matmul_precision as get_float32_matmul_precision
from minidl.cuda.device import is_available as is_available
from minidl.cuda.device import memory_allocated as memory_allocated
from minidl.cuda.device import memory_reserved as memory_reserved
from minidl.cuda.device import set_device as set_device
from minidl.cuda.device import set_float32_matmul_precision as set_float32_matmul_precision
from minidl.cuda.device import synchronize as synchronize
from minidl.cuda.host.includes import KERNELS as KERNELS
from minidl.cuda.host.includes import KernelError as KernelError
from minidl.cuda.run import Kernel as Kernel
from minidl.cuda.run import check as check
from minidl.cuda.run import is_watched as is_watched
from minidl.cuda.run import kernel as kernel
from minidl.cuda.run import n_threads as n_threads
from minidl.cuda.run import set_threads as set_threads
