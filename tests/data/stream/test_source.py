"""minidl/data/stream/source.py: every offset once, in an order that no number of ranks changes."""

import gc
import threading
from itertools import islice

import numpy as np
import pytest

from minidl import nn, snapshot
from minidl.comm import objects, simulate, tree
from minidl.data.stream import FolderLog, Gone, Source
from minidl.data.stream import source as module
from minidl.random import Generator
from tests.conftest import ranks
from tests.snapshot.test_snapshot import common_folder

LENGTHS = [130, 0, 75, 64, 1]


def filled(folder):
    """Partition p has LENGTHS[p] records, b"p:offset", one a second."""
    log = FolderLog(folder / "log", len(LENGTHS), segment_bytes=200)
    for p, n in enumerate(LENGTHS):
        for some in np.array_split(np.arange(n), 7):  # a segment each
            log.append(p, [b"%d:%d" % (p, k) for k in some], 1000 * some)
    return log


@pytest.fixture
def log(tmp_path):
    return filled(tmp_path)


def taken(t, log, n_steps=None, source=None, **options):
    """[{partition: offsets}] of the steps on this rank."""
    source = source or Source(log, t, **{"until": LENGTHS, "block": 32, **options})
    return [({part.partition: part.offsets.tolist() for part in parts}, total)
            for parts, total in islice(source, n_steps)]


def merged(ranks):
    """Of the steps of all ranks one list: ({partition: offsets}, total)."""
    assert len({len(steps) for steps in ranks}) == 1, "the same number of steps everywhere"
    for step in zip(*ranks, strict=True):
        (total,) = {total for _, total in step}
        parts = {p: offsets for mine, _ in step for p, offsets in mine.items()}
        assert total == sum(map(len, parts.values()))
        yield parts


def run(size, log, n_steps=None, **options):
    """The steps of a run on `size` ranks."""
    return list(merged(simulate(size, lambda t: taken(t, log, n_steps, **options))))


def once(steps, lengths=LENGTHS):
    for p, n in enumerate(lengths):
        assert sorted(k for parts in steps for k in parts.get(p, ())) == list(range(n))


@ranks(1, 2, 3, 4, 5, 8)
def test_steps_do_not_depend_on_the_number_of_ranks(t):
    with common_folder(t) as folder:
        if t.rank == 0:
            filled(folder)
        tree.barrier(t)
        found = objects.all_gather(t, taken(t, FolderLog(folder / "log")))
        steps = list(merged(found))
        if t.rank == 0:
            assert steps == list(merged([taken(t.subgroup([0]), FolderLog(folder / "log"))]))
    once(steps)
    assert len(steps) == -(-max(LENGTHS) // 16)
    for rank, mine in enumerate(found):
        assert {p for parts, _ in mine for p in parts} <= set(range(rank, 5, t.size))


@pytest.mark.parametrize("per_partition", [1, 16, 31, 200])
def test_a_block_is_permuted_by_its_partition_and_its_place(log, per_partition):
    steps = run(2, log, per_partition=per_partition)
    once(steps)
    got = [k for parts in steps for k in parts.get(0, ())]
    for first in range(0, 130, 32):
        numbers = Generator(0, 0)
        numbers.set_state((0, 0, first << 32))
        n = min(32, 130 - first)
        assert got[first:first + n] == (first + numbers.permutation(n)).tolist()
    assert got[:32] != sorted(got[:32]) and got[:32] != [k - 32 for k in got[32:64]]
    other = [k for parts in run(1, log, seed=1) for k in parts.get(0, ())]
    assert other != got and sorted(other) == sorted(got)
    in_order = [k for parts in run(1, log, block=1) for k in parts.get(0, ())]
    assert in_order == list(range(130))


def test_values_and_times_belong_to_their_offsets(log):
    def check(t):
        for parts, _ in Source(log, t, block=32, until=LENGTHS):
            for part in parts:
                assert part.values == [b"%d:%d" % (part.partition, k) for k in part.offsets]
                assert part.times.tolist() == (1000 * part.offsets).tolist()

    simulate(2, check)


def test_a_block_ends_by_event_time(log):
    """No wall clock: 10 records of a second each, whatever `block` allows."""
    steps = run(1, log, block=64, block_ms=10_000, per_partition=10)
    for i, parts in enumerate(steps):
        assert sorted(parts[0]) == list(range(10 * i, 10 * i + 10))


def saved(t, log, folder, n_steps, options=()):
    """Go on from the newest snapshot, save after each step; the offsets of the steps done."""
    source = Source(log, t, **{"until": LENGTHS, "block": 32, "seed": 3, **dict(options)})
    model, step, steps = nn.Linear(1, 1), 0, []
    if snapshot.latest(folder) is not None:
        step = snapshot.load(folder, t, model=model, source=source)
    for parts, total in islice(source, n_steps):
        steps.append(({part.partition: part.offsets.tolist() for part in parts}, total))
        step += 1
        snapshot.save(folder, step, t, model=model, source=source)
    return steps


@pytest.mark.parametrize("sizes", [(3, 2, 1), (1, 4), (2, 8, 3, 1)])
def test_a_resume_on_another_number_of_ranks_is_exact(log, tmp_path, sizes):
    """3 partitions with records, on 3 ranks, then 2, then 1: the steps of one run."""
    whole = run(1, log, seed=3)
    found = []
    for i, size in enumerate(sizes):
        n = 3 if i < len(sizes) - 1 else None
        found += merged(simulate(size, saved, log, tmp_path / "runs", n))
    assert found == whole


@pytest.mark.parametrize("per_partition", [5, 40])
def test_steps_that_end_within_a_block_resume(log, tmp_path, per_partition):
    """A resume within a block, and a step of two blocks."""
    options = {"per_partition": per_partition, "block": 24}
    whole = run(1, log, seed=3, **options)
    found = []
    for size in [2, 1, 3] * 20:
        some = list(merged(simulate(size, saved, log, tmp_path / "runs", 1, options)))
        found += some
        if not some:
            break
    assert found == whole


def test_records_read_ahead_are_not_used(log):
    """The place is that of the steps given, however much threads have read."""
    def body(t):
        source = Source(log, t, per_partition=8, block=8, until=LENGTHS, ahead=5)
        steps = iter(source)
        next(steps)
        return source.rows()["place"].tolist()

    assert simulate(1, body)[0] == [[0, 8, 0, 0], [1, 0, 0, 0], [2, 8, 0, 0], [3, 8, 0, 0],
                                    [4, 1, 0, 0]]


def test_how_far_threads_read_is_bounded(log):
    """A trainer that does not ask holds `ahead` blocks, and those in the making."""
    asked = []

    class Counting(type(log)):
        def read(self, partition, offset, n):
            asked.append((partition, offset))
            return super().read(partition, offset, n)

    log.__class__ = Counting

    def body(t):
        steps = iter(Source(log, t, per_partition=8, block=8, until=[130] + [0] * 4, ahead=2))
        for _ in range(3):
            next(steps)
        before = -1
        while before != len(asked):  # until the threads wait
            before = len(asked)
            module.time.sleep(0.05)
        return max(offset for _, offset in asked)

    assert simulate(1, body)[0] <= 8 * (3 + 2)


def test_positions_only_grow(log):
    def body(t):
        seen = {}
        for parts, _ in Source(log, t, per_partition=7, block=24, until=LENGTHS):
            for part in parts:
                assert part.position == seen.get(part.partition, 0) + part.n
                seen[part.partition] = part.position
        return seen

    assert simulate(1, body)[0] == {0: 130, 2: 75, 3: 64, 4: 1}


def test_a_block_waits_for_its_records(log):
    """Records that come later end up where they would have been."""
    n = LENGTHS[0]

    log.append(0, [b"0:%d" % k for k in range(n, n + 31)], [0] * 31)
    rest = threading.Timer(0.15, log.append, (0, [b"0:%d" % k for k in range(n + 31, n + 40)],
                                              [0] * 9))

    def body(t):
        rest.start()  # before it there is a partial block, then an idle partition: no records
        steps = Source(log, t, per_partition=32, block=32, start=LENGTHS, idle_s=0.02,
                       until=[n + 40, *LENGTHS[1:]])
        return [part.offsets.tolist() for parts, _ in steps for part in parts]

    first, second = simulate(1, body)[0]
    assert sorted(first) == list(range(n, n + 32)) and sorted(second) == list(range(n + 32, n + 40))


def test_an_idle_partition_does_not_hold_up_the_others(log):
    steps = run(2, log, 4, block=32, per_partition=32, idle_s=0.01, until=None)
    assert [sorted(parts) for parts in steps] == [[0, 2, 3], [0, 2, 3], [0], [0]]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_an_offset_that_is_gone_is_an_error_on_all_ranks(log, tmp_path, size):
    simulate(2, saved, log, tmp_path / "runs", 1)
    oldest = log.delete_before(0, 60)
    assert oldest > 32
    caught = []

    def body(t):
        try:
            saved(t, log, tmp_path / "runs", 5)
        except (Gone, RuntimeError) as error:
            caught.append(str(error))

    simulate(size, body)
    assert len(caught) == size
    for text in caught:
        assert f"partition 0: offset 0 was deleted; the oldest offset is {oldest}" in text
        assert f"1 of {size} ranks could not read the stream" in text


def loading():
    return {thread for thread in threading.enumerate() if thread.name == "minidl-loader"}


def test_threads_end_with_the_error_that_ends_the_steps(log):
    """Not with its traceback, which a caller may keep, nor when the collector comes by."""
    before, kept = loading(), []
    steps = iter(Source(log, simulate(1, lambda t: t)[0], until=[130] + [0] * 4, block=8,
                        per_partition=8))
    next(steps)
    assert loading() - before
    gc.disable()
    try:
        with pytest.raises(KeyError) as kept:
            steps.throw(KeyError("a fault of the training step"))
        for thread in loading() - before:
            thread.join(10)
        assert kept and loading() <= before
    finally:
        gc.enable()


def test_another_stream_is_refused(log, tmp_path):
    simulate(2, saved, log, tmp_path / "runs", 1)
    with pytest.raises(Exception, match="the snapshot's stream has block 32, here 16"):
        simulate(1, saved, log, tmp_path / "runs", 1, {"block": 16})
    other = FolderLog(tmp_path / "other", 3)
    with pytest.raises(Exception, match="partitions 5, here 3"):
        simulate(1, saved, other, tmp_path / "runs", 1, {"until": [0] * 3})
    with pytest.raises(Exception, match="got per_partition=0 and block=256"):
        simulate(1, lambda t: Source(log, t, per_partition=0))


def test_ranks_that_do_not_read(log, tmp_path):
    """Rank 0 holds the source to save it; ranks 1 and 2 read."""
    def body(t):
        source = Source(log, t, block=32, until=LENGTHS, readers=[1, 2])
        steps = taken(t, log, 2, source) if t.rank else []
        snapshot.save(tmp_path, 2, t, model=nn.Linear(1, 1), source=source)
        if not t.rank:
            with pytest.raises(ValueError, match="rank 0 reads no stream"):
                next(iter(source))
        return steps

    ranks = simulate(3, body)
    found = list(merged(ranks[1:]))
    assert found == run(1, log, 2)

    def rest(t):
        source = Source(log, t, block=32, until=LENGTHS)
        snapshot.load(tmp_path, t, model=nn.Linear(1, 1), source=source)
        return taken(t, log, source=source)

    once(found + list(merged(simulate(1, rest))))
