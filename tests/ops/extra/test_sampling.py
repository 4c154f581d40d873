"""Random choices: frequencies, no repeats, replayed by the generator, wrong weights refused."""

import numpy as np
import pytest

import minidl
from minidl.random import Generator


def test_bernoulli_has_the_frequencies_asked_for():
    p = minidl.tensor([[0.0, 0.25, 1.0]]).expand(4000, 3)
    drawn = p.bernoulli(generator=Generator(1))
    assert drawn.dtype == np.float32 and set(np.unique(drawn.numpy())) == {0, 1}
    # the standard deviation of a mean of 4,000 is below 0.007
    np.testing.assert_allclose(drawn.numpy().mean(0), [0, 0.25, 1], atol=0.035)
    assert minidl.zeros(5).bernoulli(1.0).tolist() == [1] * 5


def test_multinomial_has_the_frequencies_asked_for():
    w = minidl.tensor([1.0, 0.0, 3.0, 4.0])
    drawn = w.multinomial(8000, replacement=True, generator=Generator(2)).numpy()
    np.testing.assert_allclose(np.bincount(drawn, minlength=4), [1000, 0, 3000, 4000], atol=225)
    rows = w.expand(2000, 4).multinomial(3, generator=Generator(3)).numpy()
    assert rows.shape == (2000, 3) and (np.sort(rows, 1) == [0, 2, 3]).all()
    np.testing.assert_allclose(np.bincount(rows[:, 0], minlength=4), [250, 0, 750, 1000], atol=112)


def test_multinomial_draws_no_place_behind_the_last_weight():
    """Half of the smallest number and more is rounded up to it: a draw may reach the sum."""
    w = minidl.Tensor(np.array([5e-324, 0.0]))
    assert w.multinomial(50, replacement=True, generator=Generator(4)).tolist() == [0] * 50


def test_equal_generators_draw_equal_numbers():
    w = minidl.ones(3, 5)
    for replacement in (False, True):
        a, b = (w.multinomial(4, replacement, generator=Generator(5)).tolist() for _ in range(2))
        assert a == b


@pytest.mark.parametrize("call, message", [
    (lambda: minidl.tensor([0.5, 2.0]).bernoulli(), "0 to 1; got numbers from 0.5 to 2"),
    (lambda: minidl.tensor([1.0, -1.0]).multinomial(1), "finite and 0 or more"),
    (lambda: minidl.zeros(2).multinomial(1), "a weight above 0"),
    (lambda: minidl.tensor([1.0, 0.0]).multinomial(2), "2 different indices need .* row with 1"),
    (lambda: minidl.tensor([1, 2]).multinomial(1), "wants floating weights"),
    (lambda: minidl.ones(2).multinomial(0), "num_samples must be 1 or more; got 0"),
])
def test_wrong_weights_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
