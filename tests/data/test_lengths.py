"""minidl/data/lengths.py: every sample once, waste beside its formula, ranks that do not wait."""

from functools import partial

import numpy as np
import pytest

from minidl.data import Pipeline, lengths

# words of a review: mean 230, a long tail, as log-normal as any real text is
SIZES = np.minimum(np.random.default_rng(0).lognormal(5, 1, 25_600).astype(int) + 1, 2000)


def once(batches, n=25_600):
    return sorted(i for b in batches for i in b) == list(range(n))


@pytest.mark.parametrize("pool", [1, 5, 50])
def test_waste_is_within_a_point_of_its_formula(pool):
    batches = lengths.pools(SIZES, batch_size=32, pool=pool, seed=1)(0)
    if pool == 1:  # sorting within a batch changes nothing
        theory = 1 - SIZES.mean() / np.sort(np.random.default_rng(1).choice(
            SIZES, (20_000, 32)), axis=1)[:, -1].mean()
        assert abs(lengths.expected_waste(SIZES, 32) - theory) < 0.005
    assert once(batches)
    assert abs(lengths.waste(SIZES, batches) - lengths.expected_waste(SIZES, 32, pool)) < 0.01


def test_sorted_pools_and_packing_waste_little():
    unsorted, sorted_, packed = (
        lengths.waste(SIZES, lengths.pools(SIZES, batch_size=32, pool=1)(0)),
        lengths.waste(SIZES, lengths.pools(SIZES, batch_size=32, pool=50)(0)),
        lengths.waste(SIZES, lengths.packs(SIZES, 2048)(0), capacity=2048))
    assert unsorted > 0.7 and sorted_ < 0.1 and packed < 0.02


def test_a_token_budget_is_kept_when_padded():
    batches = lengths.pools(SIZES, tokens=8192, pool=20)(3)
    assert once(batches)
    places = [len(b) * SIZES[b].max() for b in batches]
    assert max(places) <= 8192 and np.mean(places) > 0.85 * 8192
    assert lengths.pools(SIZES, tokens=8192)(0) != lengths.pools(SIZES, tokens=8192)(1)


def test_pools_go_up_and_down_in_turn():
    """So that a pool begins with the batch most like the last one of the pool before."""
    batches = lengths.pools(SIZES, batch_size=32, pool=10)(0)
    longest = np.reshape([SIZES[b].max() for b in batches], (-1, 10))
    assert (np.diff(longest[::2]) >= 0).all() and (np.diff(longest[1::2]) <= 0).all()


@pytest.mark.parametrize("n", [0, 1, 2, 37, 300])
def test_first_fit_decreasing_is_the_textbook_s(n):
    sizes = np.random.default_rng(n).integers(1, 41, n)
    rows, room = [], []
    for k in np.argsort(-sizes, kind="stable"):
        at = next((i for i, r in enumerate(room) if r >= sizes[k]), None)
        if at is None:
            at = len(rows)
            rows.append([])
            room.append(40)
        rows[at].append(k)
        room[at] -= sizes[k]
    assert lengths.first_fit_decreasing(sizes, 40) == rows
    assert len(rows) <= 11 / 9 * np.ceil(sizes.sum() / 40) + 1  # Johnson's bound, of the optimum


def samples(sizes):
    return [(np.arange(1, n + 1), 10 * np.arange(1, n + 1)) for n in sizes]


def test_a_packed_row_holds_its_samples_one_by_one():
    ids, targets, positions = lengths.pack(samples([3, 1, 2]), 8)
    assert ids.tolist() == [1, 2, 3, 1, 1, 2, 0, 0]
    assert targets.tolist() == [10, 20, 30, 10, 10, 20, -100, -100]
    assert positions.tolist() == [0, 1, 2, 0, 0, 1, 0, 0]


def test_padding_is_of_the_fill():
    ids, targets = lengths.pad(samples([3, 1]))
    assert ids.tolist() == [[1, 2, 3], [1, 0, 0]]
    assert targets.tolist() == [[10, 20, 30], [10, -100, -100]]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("kind", ["count", "tokens", "rows"])
def test_every_rank_has_as_many_batches_and_every_sample_comes_once(size, kind):
    for n in (16, 17, 100, 333):
        sizes = SIZES[:n] % 100 + 1
        groups = {"count": lengths.pools(sizes, batch_size=3, pool=4),
                  "tokens": lengths.pools(sizes, tokens=300, pool=4),
                  "rows": lengths.packs(sizes, 128, pool=50)}[kind]
        p = Pipeline(range(n)).group(groups, collate=list)
        shares = [list(p.shard(r, size, groups=0)) for r in range(size)]
        assert once([b for share in shares for b in share], n)
        assert len({len(share) for share in shares}) == 1
        assert all(b for share in shares for b in share), "no batch is empty"
        if kind == "rows":
            assert all(sizes[b].sum() <= 128 for share in shares for b in share)


@pytest.mark.parametrize("size", [2, 4])
def test_neighbours_dealt_to_the_ranks_do_not_wait(size):
    groups = lengths.pools(SIZES, batch_size=32, pool=50 * size)
    p = Pipeline(range(len(SIZES))).group(groups, collate=list)

    def waiting(**options):
        shares = [list(p.shard(r, size, **options)) for r in range(size)]
        steps = zip(*shares, strict=True)
        return lengths.waiting([[len(b) * SIZES[b].max() for b in step] for step in steps])

    assert waiting(groups=0) < 0.1
    # the negative control: the same batches, in random order
    batches = groups(0)
    order = np.random.default_rng(0).permutation(len(batches))
    costs = [len(batches[i]) * SIZES[batches[i]].max() for i in order]
    n = len(costs) // size * size
    assert lengths.waiting(np.reshape(costs[:n], (-1, size))) > 0.25


def test_a_sample_that_does_not_fit_is_named():
    with pytest.raises(ValueError, match="sample 1 has 9 tokens, but a batch or a row has room"):
        lengths.packs([3, 9], 8)
    with pytest.raises(ValueError, match="either batch_size or tokens"):
        lengths.pools([3, 9])
    with pytest.raises(ValueError, match="2 lists of one sample cannot be divided among 3 ranks"):
        list(Pipeline(range(2)).group(lengths.pools([1, 1], 1)).shard(0, 3))


def test_a_packed_pipeline_ends_in_rectangles():
    sizes = SIZES[:60] % 100 + 1
    p = Pipeline(samples(sizes)).group(lengths.packs(sizes, 128, pool=30),
                                       partial(lengths.pack, capacity=128)).shard(0, 2).batch(4)
    for fields in p.prefetch(2):
        assert {f.shape for f in fields} <= {(4, 128), (len(fields[0]), 128)} and len(fields) == 3
