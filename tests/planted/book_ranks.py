"""Planted bugs in the pages of minidl/plain about many ranks: see bug.py."""

from tests.planted.bug import Bug

BUGS = [
    Bug(
        "the page's ranks of a node all-reduce another part than they own",
        "minidl/plain/hierarchical.py", "all_reduce",
        "[(node.rank + 1) % node.size]", "[node.rank]",
        "tests/plain/test_hierarchical.py::test_all_reduce_has_the_bits_and_the_bytes_of_the_real_one"),
]
