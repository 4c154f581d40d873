"""The page and the real one: the same items in the same order, loaded ahead as far as they say."""

import threading
import time

import pytest

from minidl.data.prefetch import prefetch as real
from minidl.plain.prefetch import prefetch


@pytest.mark.parametrize("n_items", [0, 1, 17])
@pytest.mark.parametrize("n", [1, 2, 30])
def test_the_items_are_those_of_the_real_one(n_items, n):
    ours = list(prefetch(iter(range(n_items)), n))
    theirs = [result for _, result in real(range(n_items), lambda i: i, n_ahead=n)]
    assert ours == theirs == list(range(n_items))


@pytest.mark.parametrize("n", [1, 3])
def test_a_thread_loads_n_and_one_more_ahead(n):
    drawn, threads = [], set()

    def items():
        for i in range(20):
            drawn.append(i)
            threads.add(threading.current_thread())
            yield i

    for i in prefetch(items(), n):
        wanted = min(i + n + 2, 20)  # item i, n in the queue, one in the hands of the thread
        deadline = time.monotonic() + 10
        while len(drawn) < wanted and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.002)  # if it may draw more, it does so now
        assert len(drawn) == wanted
    assert threading.main_thread() not in threads
