"""Which accelerator there is, PyTorch's `torch.accelerator`: CUDA, or none.

    device = accelerator.current_accelerator() if accelerator.is_available() else "cpu"

Test: tests/test_idioms.py
"""

from minidl.backend import Device
from minidl.cuda.device import device_count, is_available, synchronize

__all__ = ["current_accelerator", "device_count", "is_available", "synchronize"]


def current_accelerator(check_available=False):
    """The device "cuda", or None on a machine without a GPU."""
    return Device("cuda") if is_available() else None
