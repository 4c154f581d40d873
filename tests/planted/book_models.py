"""Planted bugs in the pages of minidl/plain on divided models and after training: see bug.py."""

from tests.planted.bug import Bug

BUGS = [
    Bug(
        "the page's f does not sum the terms of a gradient",
        "minidl/plain/tensor_parallel.py", "f",
        "sum_over_ranks(t, term)", "term",
        "tests/plain/test_tensor_parallel.py::test_the_parts_together_are_one_ranks_network"),
]
