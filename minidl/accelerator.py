"""Tells which accelerator this machine has: CUDA, or none. In PyTorch this is `torch.accelerator`.

    device = accelerator.current_accelerator() if accelerator.is_available() else "cpu"

Test: tests/test_idioms.py
"""

from minidl.backend import device
from minidl.cuda.device import device_count, is_available, synchronize

__all__ = ["current_accelerator", "device_count", "is_available", "synchronize"]


def current_accelerator(check_available=False):
    """Returns the device "cuda", or None on a machine without a GPU. `check_available` has no
    effect. It is there because PyTorch has this argument."""
    return device("cuda") if is_available() else None
