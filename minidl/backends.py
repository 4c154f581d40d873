"""PyTorch's `torch.backends`: tells which devices exist, and has the settings of cuDNN.

    minidl.backends.mps.is_available()           False: there is no backend for Apple's GPUs
    minidl.backends.cudnn.deterministic = True   changes nothing: each op gives the same bits anyway

Test: tests/test_idioms.py
"""

from types import SimpleNamespace

from minidl.cuda.device import is_available

mps = SimpleNamespace(is_available=lambda: False, is_built=lambda: False)
cuda = SimpleNamespace(is_built=is_available)
cudnn = SimpleNamespace(is_available=lambda: False, enabled=False, benchmark=False,
                        deterministic=True)
