"""First fit, by hand and against a map of bytes; a recorded step, scattered and contiguous."""

import numpy as np
import pytest

import minidl
from minidl import memory, nn, optim
from minidl.memory.fragmentation import contiguous, first_fit, placements
from minidl.nn import functional as F


def test_a_replay_by_hand():
    # aaaabbccccde: b and d are freed, f of 3 fits into neither hole
    events = [(0, 4), (1, 2), (2, 4), (3, 1), (4, 1), (1, 0), (3, 0), (5, 3)]
    assert first_fit(events) == (12, 15, 3)  # 2 + 1 + 3 free before f, 3 of them in one piece
    *_, last = placements(events)
    assert last == [(0, 4, 0), (6, 10, 2), (11, 12, 4), (12, 15, 5)]


def test_the_lowest_hole_that_fits_is_used_and_holes_side_by_side_are_one():
    events = [(0, 3), (1, 2), (2, 2), (3, 3), (0, 0), (1, 0), (4, 4), (2, 0), (5, 3)]
    *_, last = placements(events)
    assert last == [(0, 4, 4), (4, 7, 5), (7, 10, 3)]


@pytest.mark.parametrize("events", [[], [(0, 0)], [(0, 5), (0, 0)], [(0, 5), (1, 0), (1, 0)]])
def test_nothing_and_buffers_without_bytes(events):
    most = max((n for _, n in events), default=0)
    assert first_fit(events) == (most, most, 0)


@pytest.mark.parametrize("seed", range(3))
def test_against_a_map_of_bytes(seed):
    rng = np.random.default_rng(seed)
    owner = np.full(2000, -1)
    alive, events, expected = [], [], []
    for number in range(120):
        if alive and rng.random() < 0.45:
            gone = alive.pop(rng.integers(len(alive)))
            events.append((gone, 0))
            owner[owner == gone] = -1
            expected.append(owner.copy())
        n = int(rng.integers(1, 20))
        start = next(i for i in range(len(owner)) if (owner[i:i + n] == -1).all())
        owner[start:start + n] = number
        events.append((number, n))
        alive.append(number)
        expected.append(owner.copy())
    for blocks, wanted in zip(placements(events), expected, strict=True):
        got = np.full(2000, -1)
        for start, stop, number in blocks:
            assert (got[start:stop] == -1).all()
            got[start:stop] = number
        assert np.array_equal(got, wanted)
    used = [(w != -1).sum() for w in expected]
    replay = first_fit(events)
    assert replay.live == max(used)
    assert replay.span == max(np.flatnonzero(w != -1).max(initial=-1) + 1 for w in expected)


@pytest.fixture(scope="module")
def recorded():
    minidl.manual_seed(0)
    model = nn.MLP(64, *[64] * 24, 10, activation=nn.Tanh)
    optimizer = optim.AdamW(model.parameters())
    x, y = minidl.randn(128, 64), minidl.arange(128) % 10
    for _ in range(2):
        optimizer.zero_grad()
        with memory.record(model, optimizer) as ledger:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            del loss
            optimizer.step()
    return ledger


def test_a_recorded_step_replays_to_the_ledgers_peak(recorded):
    replay = first_fit(recorded.events)
    assert replay.live == recorded.peak_bytes
    assert replay.span >= replay.live
    made = [number for number, n_bytes in recorded.events if n_bytes]
    assert len(set(made)) == len(made) and max(made) < len(recorded.kinds)
    assert {recorded.kinds[number] for number in made} == {
        "parameters", "optimizer", "gradients", "inputs", "activations", "temporary"}


def test_one_contiguous_buffer_holds_what_lives_long_and_leaves_less_in_pieces(recorded):
    events = contiguous(recorded.events, recorded.kinds)
    assert events[0] == (-1, sum(recorded.most(kind) for kind in
                                 ("parameters", "gradients", "optimizer")))
    assert not [n for n, _ in events[1:] if recorded.kinds[n] in ("gradients", "parameters")]
    scattered, together = first_fit(recorded.events), first_fit(events)
    # gradients lay among the activations, whose memory is free when backward is done
    assert scattered.in_pieces > 0.2 * recorded.most("activations")
    assert together.in_pieces < 0.5 * scattered.in_pieces


def test_gradients_of_several_steps_need_the_room_of_one():
    events = [(0, 8), (1, 3), (2, 5), (1, 0), (3, 3), (3, 0), (2, 0), (4, 0)]
    kinds = ["parameters", "gradients", "activations", "gradients", "gradients"]
    assert contiguous(events, kinds) == [(-1, 11), (2, 5), (2, 0)]
    assert contiguous(events, kinds, ("parameters",))[1:] == events[1:]
