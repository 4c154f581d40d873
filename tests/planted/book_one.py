"""Planted bugs in the pages of minidl/plain on one device: see bug.py."""

from tests.planted.bug import Bug

BUGS = [
    Bug(
        "the page's cross entropy is a sum and not a mean",
        "minidl/plain/training.py", "cross_entropy",
        "sum() / n", "sum()",
        "tests/plain/test_training.py::test_the_losses_and_weights_are_the_real_ones"),
    Bug(
        "the page's Adam forgets to undo the start of v from zero",
        "minidl/plain/optimizers.py", "adam_step",
        "v / (1 - b2**t)", "v",
        "tests/plain/test_optimizers.py::test_adam_is_the_real_one"),
]
