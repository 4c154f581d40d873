"""Arrays on the device of a test's case, and back. `device`: the fixture of conftest.py.

    def test_something(device):
        x = minidl.tensor(put(np.ones(3), device), requires_grad=True)
        (x * x).sum().backward()
        np.testing.assert_array_equal(host(x.grad), [2, 2, 2])
"""

import numpy as np

from minidl.backend import to_device


def put(x, device):
    """The NumPy array x, or each array in a tuple or a list, on the device; all else as it is."""
    if isinstance(x, (tuple, list)):
        return type(x)(put(part, device) for part in x)
    return to_device(x, device) if isinstance(x, np.ndarray) else x


def host(x):
    """A tensor or an array of either kind as a NumPy array, which may be x itself."""
    x = getattr(x, "_data", x)
    return x if isinstance(x, np.ndarray) else x.get()
