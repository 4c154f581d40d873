"""The page and the real ones: the same samples in the same order, and stages that overlap."""

import threading

import pytest

from minidl.data import Pipeline
from minidl.data.prefetch import prefetch
from minidl.plain import input as plain_input

WAIT_S = 3  # where a stage waits for another one: a failure and not a hang


@pytest.mark.parametrize("room", [1, 2, 5])
@pytest.mark.parametrize("n", [0, 1, 7])
def test_samples_are_the_real_ones_in_order(n, room):
    def extract(i):
        return [i, i * i]

    def transform(sample):
        return sum(sample)

    want = [x for _, x in prefetch(range(n), lambda i: transform(extract(i)), room, workers=2)]
    got = list(plain_input.samples(range(n), extract, transform, room))
    whole = Pipeline(range(n)).map(extract).map(transform).batch(1, collate=lambda x: x[0])
    assert got == want == list(whole.prefetch(room))


def test_each_stage_works_while_the_next_one_does():
    """Sample 0 is transformed only when sample 1 has been extracted, and its training ends only
    when sample 1 has been transformed. In fewer than three threads one would wait for ever."""
    extracted, transformed = threading.Event(), threading.Event()

    def extract(i):
        if i == 1:
            extracted.set()
        return i

    def transform(i):
        if i == 1:
            transformed.set()
        return i, extracted.wait(WAIT_S if i == 0 else 0)

    items = plain_input.samples(range(3), extract, transform)
    assert next(items) == (0, True), "no thread extracts sample 1 while sample 0 is transformed"
    assert transformed.wait(WAIT_S), "no thread transforms sample 1 while sample 0 trains"
    assert list(items) == [(1, True), (2, True)]


def test_finish_times_are_the_formula():
    for costs in ([2, 1, 3], [3, 1, 2], [1], [5, 5]):
        for n in (1, 2, 7):
            assert plain_input.finish_times(costs, n)[-1] == sum(costs) + (n - 1) * max(costs)
