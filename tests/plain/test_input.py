"""The page and the real ones: the same samples in the same order, and stages that overlap."""

import threading

import pytest

from minidl.data import Pipeline
from minidl.data.prefetch import prefetch
from minidl.plain import input as plain_input

WAIT_S = 10  # where a stage waits for another one: a failure and not a hang


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


@pytest.mark.parametrize("way", ["page", "real"])
def test_a_stage_works_while_the_next_one_does(way):
    """The training of sample 0 ends only when sample 1 has been extracted: without a thread it
    would wait for ever."""
    extracted = threading.Event()

    def extract(i):
        if i == 1:
            extracted.set()
        return i

    items = {"page": lambda: plain_input.samples(range(3), extract, lambda x: x),
             "real": lambda: (x for _, x in prefetch(range(3), extract))}[way]()
    assert next(items) == 0
    assert extracted.wait(WAIT_S)
    assert list(items) == [1, 2]


def test_a_full_queue_stops_the_stage_before():
    """With room for 2, at most 2 lie ready, and the thread has one in its hand."""
    taken, fourth = [], threading.Event()

    def read(i):
        taken.append(i)
        if len(taken) == 4:
            fourth.set()
        return i

    items = plain_input.ahead(map(read, range(100)), room=2)
    assert next(items) == 0
    assert fourth.wait(WAIT_S)  # 0 is here, 1 and 2 lie ready, 3 waits for room
    assert not threading.Event().wait(0.02) and taken == [0, 1, 2, 3]
    assert list(items) == list(range(1, 100))


def test_finish_times_are_the_formula():
    for costs in ([2, 1, 3], [3, 1, 2], [1], [5, 5]):
        for n in (1, 2, 7):
            assert plain_input.finish_times(costs, n)[-1] == sum(costs) + (n - 1) * max(costs)
