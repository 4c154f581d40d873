"""Lets a file of tests run with device arrays, and also with NumPy arrays.

    from tests.on_device import place, there
    pytestmark = pytest.mark.usefixtures("on_device")  # and with mark.gpu: on device arrays

    model, x = there(nn.Linear(2, 3)), place(np.ones((4, 2), "f4"))
"""

import minidl
from tests.devices import put

DEVICE = "cpu"  # set by the fixture on_device (conftest.py)


def place(x):
    """Returns a tensor with the NumPy array's values on the test's device."""
    return minidl.Tensor(put(x, DEVICE))


def there(module):
    """Returns the module, moved to the test's device."""
    return module.to(DEVICE)
