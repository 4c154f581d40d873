"""minidl/ops/conv_geometry.py: a convolution along one dimension and its gradient, from the phases
alone, against loops over the definition."""

import doctest
import itertools

import numpy as np
import pytest

from minidl.ops import conv_geometry
from minidl.ops.conv import output_size
from minidl.ops.conv_geometry import forward, phases

# size, kernel, stride, padding before and after, dilation
CASES = [case for case in itertools.product((1, 2, 5, 9), (1, 2, 3, 4), (1, 2, 3, 4, 6), (0, 1, 3),
                                            (0, 2), (1, 2, 3, 4))
         if output_size(case[0] + case[3] + case[4], case[1], case[2], case[5]) >= 1]


def gather(y, x, w, phase):
    """What the formula at the top of the file says, a product at a time."""
    for r in range(phase.n):
        at = phase.first + phase.step * r
        y[at] = 0
        for u in range(phase.n_taps):
            row = phase.read + phase.read_step * r + phase.read_tap * u
            if 0 <= row < len(x):
                y[at] += w[phase.tap + phase.tap_step * u] * x[row]


def test_the_cases_are_many_and_some_phase_has_no_tap():
    assert len(CASES) > 1000
    empty = [p for n, k, s, before, _, d in CASES for p in phases(n, k, s, before, d)
             if p.n_taps == 0]
    assert len(empty) > 100


def test_forward_and_by_input_are_the_definition():
    rng = np.random.default_rng(0)
    for size, kernel, stride, before, after, dilation in CASES:
        n_out = output_size(size + before + after, kernel, stride, dilation)
        x, w, gy = (rng.integers(1, 9, n) for n in (size, kernel, n_out))
        y, gx = np.zeros(n_out, int), np.zeros(size, int)
        for r, i in itertools.product(range(n_out), range(kernel)):
            h = stride * r - before + dilation * i
            if 0 <= h < size:
                y[r] += w[i] * x[h]
                gx[h] += w[i] * gy[r]
        got_y, got_gx = np.full(n_out, -1), np.full(size, -1)
        gather(got_y, x, w, forward(n_out, kernel, stride, before, dilation))
        for phase in phases(size, kernel, stride, before, dilation):
            gather(got_gx, gy, w, phase)
        case = size, kernel, stride, before, after, dilation
        np.testing.assert_array_equal(got_y, y, err_msg=str(case))
        np.testing.assert_array_equal(got_gx, gx, err_msg=str(case))


@pytest.mark.parametrize("size", [1, 2, 7])
def test_the_phases_write_each_row_once_and_use_each_tap_once(size):
    for kernel, stride, before, dilation in itertools.product((1, 3, 4), (1, 2, 5), (0, 2), (1, 2)):
        found = phases(size, kernel, stride, before, dilation)
        rows = [p.first + p.step * r for p in found for r in range(p.n)]
        assert sorted(rows) == list(range(size))
        for p in found:
            taps = [p.tap + p.tap_step * u for u in range(p.n_taps)]
            assert taps == [i for i in range(kernel)
                            if (p.first + before - dilation * i) % stride == 0]


def test_the_examples_are_right():
    assert doctest.testmod(conv_geometry) == doctest.TestResults(failed=0, attempted=2)
