"""A collective is named by its file and function, or by whoever called it first."""

import pytest

from minidl.comm import collective as module
from minidl.comm.collective import collective, current_label, in_collective
from tests.conftest import ranks

HERE = __name__.rpartition(".")[2]


@collective
def inner(t):
    """Doc."""
    return current_label(), in_collective()


@collective
def outer(t):
    return inner(t)


@ranks(1, 2)
def test_messages_are_labelled_by_file_and_function_of_the_outermost(t):
    assert (current_label(), in_collective()) == ("point-to-point", False)
    assert inner(t) == (f"{HERE}.inner", True)
    assert outer(t) == (f"{HERE}.outer", True)
    with t.named("weights"):
        assert (current_label(), in_collective()) == ("weights", False)
        with t.named("others"):
            assert outer(t) == ("weights", True)
    assert (current_label(), in_collective()) == ("point-to-point", False)
    assert inner.__doc__ == "Doc." and module.label_of(inner) == f"{HERE}.inner"


@ranks(1, 2)
def test_an_error_ends_the_label(t):
    @collective
    def fails(t):
        raise KeyError

    with pytest.raises(KeyError):
        fails(t)
    with pytest.raises(KeyError), t.named("weights"):
        raise KeyError
    assert (current_label(), in_collective()) == ("point-to-point", False)


@ranks(2, mpi=False)
def test_the_outermost_alone_is_announced_to_the_transport(t):
    announced = []
    t.entering = lambda fn, args, kwargs: announced.append((fn.__name__, args, kwargs))

    @collective
    def with_arguments(t, *args, **kwargs):
        outer(t)

    with_arguments(t, 1, k=2)
    assert announced == [("with_arguments", (1,), {"k": 2})]
