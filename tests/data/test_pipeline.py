"""minidl/data/pipeline.py: every element once, resumed to the element, on any number of ranks."""

import itertools
from functools import partial

import numpy as np
import pytest

from minidl.comm import objects, simulate
from minidl.data import IterableDataset, Pipeline, lengths
from minidl.random import default_generator, manual_seed

SIZES = [1, 2, 3, 4, 5, 8]


def flat(batches):
    return [int(i) for x in batches for i in x]


# -- stages


def test_stages_are_what_they_say():
    p = Pipeline(range(10))
    assert list(p.map(lambda i: i * i)) == [i * i for i in range(10)]
    assert list(p.filter(lambda i: i % 3 == 0)) == [0, 3, 6, 9]
    assert [x.tolist() for x in p.batch(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [x.tolist() for x in p.batch(4, drop_last=True)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [x.tolist() for x in p.filter(lambda i: i % 2).batch(2)] == [[1, 3], [5, 7], [9]]
    assert [x.tolist() for x in p.filter(lambda i: i % 2).batch(2, drop_last=True)] == (
        [[1, 3], [5, 7]])
    assert list(p.batch(3, collate=sum).map(lambda s: -s)) == [-3, -12, -21, -9]
    assert list(p.filter(lambda i: i > 4).batch(3, collate=sum).map(lambda s: -s)) == [-18, -17]
    assert sorted(p.shuffle(1)) == list(range(10)) != list(p.shuffle(1))
    assert len(p.shard(1, 3, tail="uneven").batch(2)) == 2


def test_parts_are_interleaved():
    parts = ["aaaa", "b", "", "ccc", "dd"]
    p = Pipeline(parts)
    assert "".join(p.interleave(cycle=1)) == "aaaabcccdd"
    assert "".join(p.interleave(cycle=2)) == "abaacacdcd"
    for cycle, block in itertools.product((1, 2, 3, 9), (1, 2, 3)):
        assert list(p.interleave(cycle=cycle, block=block)) == _by_hand(parts, cycle, block)


def _by_hand(parts, cycle, block):
    """tf.data's interleave, with iterators: a used up part is replaced in its place."""
    parts = [part for part in map(list, parts)]
    turn, rest, out = parts[:cycle], parts[cycle:], []
    while turn:
        for k, part in enumerate(turn):
            out += part[:block]
            del part[:block]
            if not part:
                turn[k] = rest.pop(0) if rest else None
        turn = [part for part in turn if part is not None]
    return out


def test_epochs_have_other_orders_and_the_same_elements():
    p = Pipeline(range(20)).shuffle(3).batch(5)
    first, second = flat(p), flat(p)
    assert sorted(first) == sorted(second) == list(range(20)) and first != second
    assert p.epoch == 2
    assert flat(Pipeline(range(20)).shuffle(3).batch(5)) == first


@pytest.mark.parametrize("tail", ["pad", "drop", "uneven"])
def test_shards_hold_what_the_sampler_deals(tail):
    for size, n in itertools.product(SIZES, (0, 1, 7, 8, 9)):
        shares = [list(Pipeline(range(n)).shard(r, size, tail)) for r in range(size)]
        dealt = [x for turn in itertools.zip_longest(*shares) for x in turn if x is not None]
        if tail == "pad":
            assert len({len(s) for s in shares}) == 1 and set(dealt) == set(range(n))
        elif tail == "drop":
            assert len({len(s) for s in shares}) == 1 and dealt == list(range(n // size * size))
        else:
            assert dealt == list(range(n))


def test_stages_in_an_order_that_cannot_resume_are_refused():
    p = Pipeline(range(9))
    for wrong in (lambda: p.shard(0, 2).shuffle(), lambda: p.batch(2).shard(0, 2),
                  lambda: p.shuffle().cache(), lambda: p.shard(0, 2).shard(0, 2),
                  lambda: p.batch(2).batch(2)):
        with pytest.raises(ValueError, match="must come before"):
            wrong()
    with pytest.raises(ValueError, match="halves batches"):
        list(p.shard(0, 2, tail="split"))
    with pytest.raises(ValueError, match="'auto'; got n=2 and workers=0"):
        p.prefetch(2, workers=0)
    with pytest.raises(TypeError, match="its length is not known"):
        _ = len(p.filter(bool))


def test_an_error_names_the_elements():
    with pytest.raises(ZeroDivisionError) as caught:
        list(Pipeline([1, 2, 0, 3]).map(lambda x: 1 / x).batch(2).prefetch(2, 2))
    assert "while loading samples [2, 3]" in caught.value.__notes__


# -- the same whatever the threads


def _noisy(x):
    return x, float(default_generator().uniform(())), float(default_generator().uniform(()))


@pytest.mark.parametrize("n_ahead, workers", [(0, 1), (1, 1), (3, 2), (2, 4)])
def test_random_maps_follow_the_seed_the_epoch_and_the_element(n_ahead, workers):
    manual_seed(4)
    one = {x: u for x, *u in Pipeline(range(12)).map(_noisy)}
    p = Pipeline(range(12)).shuffle(2).map(_noisy).map(lambda x: (*x, _noisy(0)[1]))
    seen = {}
    for rank in range(3):
        shard = p.shard(rank, 3).batch(2).prefetch(n_ahead, workers)
        for _ in range(2):
            for x, *u in shard:
                for k, i in enumerate(x.tolist()):
                    seen[i, shard.epoch] = [column[k].item() for column in u]
    # the same element has the same numbers when its place in the pipeline is the same
    again = {int(x): u for x, *u in p}
    assert all(seen[i, 0] == pytest.approx(again[i]) for i in range(12))
    assert len({u for us in seen.values() for u in us}) == 12 * 2 * 3, "no stream is used twice"
    assert len(set(map(tuple, one.values()))) == 12


def test_cached_elements_are_made_once():
    made = []
    p = Pipeline(range(6)).map(lambda i: made.append(i) or i).cache().shuffle(0).batch(2)
    for _ in range(3):
        assert sorted(flat(p)) == list(range(6))
    assert sorted(made) == list(range(6))
    p = Pipeline(range(6)).filter(lambda i: made.append(i) or i % 2).cache().batch(2)
    made.clear()
    assert flat(p) == flat(p) == [1, 3, 5] and made == list(range(6))


# -- resumed


def _pipelines(size, kind, n=53):
    p = Pipeline(range(n))
    if kind == "filtered":
        return [p.shuffle(1).filter(lambda i: i % 3).shard(r, size, "uneven").batch(3).prefetch(2)
                for r in range(size)]
    if kind == "grouped":
        sizes = np.random.default_rng(0).integers(1, 9, n)
        groups = lengths.pools(sizes, batch_size=2, pool=4)
        return [p.group(groups).shard(r, size, groups=5).prefetch(2) for r in range(size)]
    return [p.shuffle(1).shard(r, size, "uneven").batch(3).prefetch(2) for r in range(size)]


def _run(size, kind, state, n_steps):
    """Some steps of all ranks: (elements seen, the state then)."""
    ranks = _pipelines(size, kind)
    seen, places = [], []
    for p in ranks:
        if state is not None:
            p.load_state_dict(state)
        it = iter(p)
        for _ in range(n_steps):
            seen += flat([next(it)])
        places.append(p._position[-1][1] if n_steps else None)
        if kind != "filtered":
            kept = p.state_dict()
        it.close()
    if kind == "filtered":
        states = simulate(size, lambda t: ranks[t.rank].state_dict(partial(objects.all_gather, t)))
        assert all(s == states[0] for s in states)
        kept = states[0]
    return seen, kept


@pytest.mark.parametrize("kind", ["plain", "filtered", "grouped"])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 2, 1), (1, 2, 3), (3, 1, 2), (4, 2, 5)])
def test_resumed_on_other_ranks_every_element_comes_once(kind, sizes):
    seen, state = [], None
    for size in sizes[:-1]:
        more, state = _run(size, kind, state, 2)
        seen += more
    last = _pipelines(sizes[-1], kind)
    for p in last:
        p.load_state_dict(state)
        assert p.state_dict()["position"] == state["position"]
        seen += flat(p)
        assert p.epoch == 1 and p._position == []
    wanted = [i for i in range(53) if kind != "filtered" or i % 3]
    assert sorted(seen) == wanted


@pytest.mark.parametrize("kind", ["plain", "filtered", "grouped"])
def test_resumed_on_as_many_ranks_the_batches_are_those_that_were_left(kind):
    for size in (1, 2, 3):
        whole = [[flat([b]) for b in p] for p in _pipelines(size, kind)]
        _, state = _run(size, kind, None, 2)
        for p, batches in zip(_pipelines(size, kind), whole, strict=True):
            p.load_state_dict(state)
            rest = [flat([b]) for b in p]
            assert rest == batches[2:]
            second = [flat([b]) for b in p]
            assert second != rest


def test_loaded_ahead_is_not_used():
    p = Pipeline(range(20)).batch(2).prefetch(5)
    it = iter(p)
    assert p.state_dict()["position"] == [[1, 0]]
    for k in range(1, 11):
        next(it)
        assert p.state_dict() == {"epoch": 0, "n": 20, "position": [[1, 2 * k]]}
    assert next(it, None) is None
    assert p.state_dict() == {"epoch": 1, "n": 20, "position": []}


def test_a_filtered_place_of_one_rank_is_refused():
    p, _ = _pipelines(2, "filtered")
    next(iter(p))
    with pytest.raises(ValueError, match="rank 0: after filter.*all_gather"):
        p.state_dict()
    with pytest.raises(ValueError, match="source of 7 elements"):
        p.load_state_dict({"epoch": 0, "n": 7, "position": []})


# -- a stream


class Log(IterableDataset):
    """Numbers from `place` on, endless; the place is that of the numbers used."""

    def __init__(self):
        self.place = 0

    def __iter__(self):
        return iter(range(self.place, self.place + 10_000))

    def used(self, item):
        self.place = item + 1

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


@pytest.mark.parametrize("n_ahead, workers", [(0, 1), (2, 1), (3, 3)])
def test_a_stream_is_resumed_by_its_own_place(n_ahead, workers):
    def pipeline(log):
        return (Pipeline(log).filter(lambda i: i % 3).map(lambda i: 10 * i)
                .batch(4).map(lambda b: b.tolist()).prefetch(n_ahead, workers))

    whole = list(itertools.islice(pipeline(Log()), 7))
    assert whole[:2] == [[10, 20, 40, 50], [70, 80, 100, 110]]
    log = Log()
    it = iter(p := pipeline(log))
    assert [next(it) for _ in range(3)] == whole[:3]
    state = p.state_dict()
    it.close()
    resumed = pipeline(Log())
    resumed.load_state_dict(state)
    assert list(itertools.islice(resumed, 4)) == whole[3:]
    with pytest.raises(TypeError, match="is a stream"):
        Pipeline(log).shuffle()


def test_without_say_the_first_rank_writes_what_auto_found(capsys):
    for rank in range(2):
        p = Pipeline(range(60)).map(lambda i: i).shard(rank, 2).prefetch(1, workers="auto")
        assert len(list(p)) == 30
        assert "workers" in p.found or "worker" in p.found
        said = capsys.readouterr().err
        assert (f"rank 0: data: {p.found}\n" in said) == (rank == 0) and (rank == 0 or not said)


def test_without_ranks_what_auto_found_is_written_too(capsys):
    p = Pipeline(range(60)).map(lambda i: i).prefetch(1, workers="auto")
    assert len(list(p)) == 60
    assert capsys.readouterr().err == f"rank 0: data: {p.found}\n"


def test_what_auto_found_goes_to_say(capsys):
    said = []
    p = Pipeline(range(60)).map(lambda i: i).prefetch(1, workers="auto", say=said.append)
    assert len(list(p)) == 60
    assert said == [p.found] and not capsys.readouterr().err


def test_groups_are_dealt_in_another_order_in_each_epoch():
    """The groups are the same ones; their order is drawn from the epoch."""
    p = Pipeline(range(40)).group(lambda epoch: [[i, i + 1] for i in range(0, 40, 2)], collate=list)
    p = p.shard(0, 1, groups=5)
    epochs = [[tuple(group) for group in p] for _ in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert len({tuple(sorted(epoch)) for epoch in epochs}) == 1
