"""Tests Mode: one value decides how ops run. A `with` block changes a field, and restores it at the
end."""

import threading
from dataclasses import FrozenInstanceError

import pytest

import minidl
from minidl import memory
from minidl.comm import simulate
from minidl.mode import Mode, current, running
from minidl.precision import amp


def test_blocks_nest_and_end_also_by_an_error():
    assert current() == Mode()
    with running(grad=False):
        with running(kernels=False):
            assert current() == Mode(grad=False, kernels=False)
        with pytest.raises(ZeroDivisionError), running(replaying=True):
            1 / 0
        assert current() == Mode(grad=False)
    assert current() == Mode()


def test_a_stored_mode_can_be_run_again():
    with minidl.no_grad(), minidl.use_fused(False):
        stored = current()
    with running(stored, replaying=True):
        assert current() == Mode(grad=False, kernels=False, replaying=True)


def test_a_mode_does_not_change():
    with pytest.raises(FrozenInstanceError):
        current().grad = False


def test_every_switch_of_the_library_is_a_block_of_a_mode():
    with amp.autocast(), memory.record(), minidl.use_fused(False), minidl.no_grad():
        mode = current()
    assert not mode.grad and not mode.kernels and mode.autocast and mode.ledger
    assert current() == Mode()


def test_the_blocks_are_decorators_too():
    @minidl.no_grad()
    def look():
        return minidl.is_grad_enabled()

    assert look() is False and minidl.is_grad_enabled()
    with minidl.no_grad(), minidl.enable_grad():
        assert minidl.is_grad_enabled()


def test_threads_and_ranks_have_modes_of_their_own():
    seen = []
    with minidl.no_grad():
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
        assert seen == [Mode()]
        assert simulate(2, lambda t: current()) == [Mode(), Mode()]


def test_no_grad_decorates_with_and_without_brackets():
    x = minidl.ones(2, requires_grad=True)
    for decorate, wanted in ((minidl.no_grad, False), (minidl.no_grad(), False),
                             (minidl.inference_mode, False), (minidl.inference_mode(), False),
                             (minidl.enable_grad, True), (minidl.enable_grad(), True)):
        with minidl.set_grad_enabled(not wanted):
            assert decorate(lambda: x * 2)().requires_grad == wanted
    with minidl.inference_mode(False):
        assert (x * 2).requires_grad
