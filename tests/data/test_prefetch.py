"""minidl/data/prefetch.py: results in order, by one thread or several; how many threads."""

import threading
import time

import pytest

from minidl.data.prefetch import prefetch, step_time, workers_for


def results(*args, **options):
    return [result for _, result in prefetch(*args, **options)]


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("n_ahead", [0, 1, 2, 7])
def test_results_keep_the_order_whoever_is_first(workers, n_ahead):
    def work(i):
        time.sleep(0.002 * (i % 3 == 0))  # every third is overtaken
        return -i

    for n in (0, 1, 2, 9):
        assert results(range(n), work, n_ahead, workers) == [-i for i in range(n)]


@pytest.mark.parametrize("workers", [2, 4])
def test_so_many_workers_work_at_once(workers):
    together = threading.Barrier(workers, timeout=20)  # broken unless all are there at once
    assert results(range(4 * workers), lambda i: together.wait() >= 0, 1, workers) == (
        [True] * 4 * workers)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_fault_comes_in_its_place_and_ends_all_threads(workers):
    def work(i):
        if i == 5:
            raise LookupError("item 5")
        return i

    seen = []
    with pytest.raises(LookupError, match="item 5"):
        for _, result in prefetch(range(100), work, 4, workers):
            seen.append(result)
    assert seen == [0, 1, 2, 3, 4]

    def tasks():
        yield from range(3)
        raise OSError("no more")

    seen.clear()
    with pytest.raises(OSError, match="no more"):
        for _, result in prefetch(tasks(), work, 4, workers):
            seen.append(result)
    assert seen == [0, 1, 2]
    ours = [t for t in threading.enumerate() if t.name == "minidl-loader"]
    for thread in ours:
        thread.join(20)
        assert not thread.is_alive()


def test_workers_by_little_s_law():
    assert workers_for(0.080, 0.0, 0.020) == 4
    assert workers_for(0.081, 0.0, 0.020) == 5
    assert workers_for(0.001, 0.0, 0.020) == 1
    # computing 40 ms an item on 2 cores: a step cannot be shorter than 20 ms, however many workers
    assert workers_for(0.080, 0.040, 0.001, ranks=1, cores=2) == 4
    assert workers_for(0.080, 0.040, 0.001, ranks=2, cores=2) == 2
    assert workers_for(10.0, 0.0, 0.0) == 32


def test_the_formula_of_a_step():
    assert step_time(0.08, 0.0, 0.02, workers=4) == 0.02
    assert step_time(0.08, 0.0, 0.02, workers=2) == 0.04
    assert step_time(0.08, 0.03, 0.02, workers=4, ranks=2, cores=2) == 0.03
    assert step_time(0.08, 0.03, 0.02, workers=1) == 0.08, "one worker waits, then computes"


def test_auto_finds_the_workers_and_says_so():
    said, seen, most, now = [], [], 0, set()

    def work(i):
        nonlocal most
        now.add(i)
        most = max(most, len(now))
        time.sleep(0.02)
        now.discard(i)
        return i

    for _, result in prefetch(range(40), work, 1, "auto", said.append):
        seen.append(result)
        time.sleep(0.005)
    assert seen == list(range(40))
    (line,) = said
    assert 2 <= most <= 5, "20 ms to load, steps of 5 ms: four, or fewer on a busy machine"
    assert "loading an item takes" in line and f"{most} workers" in line
