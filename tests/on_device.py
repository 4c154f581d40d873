"""A file of tests with device arrays beside NumPy's, whatever the ranks.

    from tests.on_device import place, there
    pytestmark = pytest.mark.usefixtures("on_device")  # and with mark.gpu: on device arrays

    model, x = there(nn.Linear(2, 3)), place(np.ones((4, 2), "f4"))
"""

import minidl
from tests.devices import put

DEVICE = "cpu"  # set by the fixture on_device (conftest.py)


def place(x):
    """A tensor of the NumPy array on the test's device."""
    return minidl.Tensor(put(x, DEVICE))


def there(module):
    """The module on the test's device."""
    return module.to(DEVICE)
