"""Schedules: the published orders, their formulas, and what cannot run."""

import itertools

import pytest

from minidl.parallel.model.schedule import (
    At, Do, bubble, check, gpipe, interleaved, live, makespan, one_f_one_b, rank_of_stage, text,
    timeline, zb_h1,
)

SIZES = [(p, m) for p in range(1, 9) for m in (1, 2, 3, 4, 5, 7, 8, 12, 16, 31)]


def spelled(line):
    """"F0-2 B0" as the words that `text` writes; "F4.0-3" the same for stage 4."""
    for word in line.split():
        kind, _, numbers = word.rpartition(".") if "." in word else (word[0], "", word[1:])
        dot = "." if "." in word else ""
        first, _, last = numbers.partition("-")
        for i in range(int(first), int(last or first) + 1):
            yield f"{kind}{dot}{i}"


def assert_orders(schedule, golden):
    lines = text(schedule).splitlines()
    for rank, line in golden.items():
        assert lines[rank] == " ".join(spelled(line))


def test_1f1b_is_megatrons_order():
    assert_orders(one_f_one_b(4, 6), {
        0: "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5",
        1: "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5",
        2: "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5",
        3: "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5"})


def test_gpipe_does_all_forwards_first():
    assert_orders(gpipe(2, 3), {0: "F0-2 B0-2", 1: "F0-2 B0-2"})


def test_interleaved_is_megatrons_order():
    assert_orders(interleaved(2, 4, 2), {
        0: "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3",
        1: "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3"})
    assert_orders(interleaved(4, 8, 2), {
        0: "F0.0-3 F4.0-3 F0.4-6 B4.0 F0.7 B4.1 F4.4 B4.2 F4.5 B4.3 F4.6 B0.0 F4.7 B0.1-3 B4.4-7 "
           "B0.4-7",
        3: "F3.0-3 F7.0 B7.0 F7.1 B7.1 F7.2 B7.2 F7.3 B7.3 F3.4 B3.0 F3.5 B3.1 F3.6 B3.2 F3.7 B3.3 "
           "F7.4 B7.4 F7.5 B7.5 F7.6 B7.6 F7.7 B7.7 B3.4-7"})


def test_zb_h1_is_the_papers_order():
    assert_orders(zb_h1(4, 8), {
        0: "F0-3 B0 W0 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 B5 W5 B6 W6 B7 W7",
        3: "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4-7"})


@pytest.mark.parametrize("p, m", SIZES)
def test_bubbles_and_live_activations_are_their_formulas(p, m):
    """Also where there are fewer micro-batches than ranks."""
    for schedule, held in ((gpipe(p, m), [m] * p),
                           (one_f_one_b(p, m), [min(p - s, m) for s in range(p)])):
        check(schedule)
        assert bubble(timeline(schedule, 1, 1, 1)) == pytest.approx((p - 1) / (m + p - 1), abs=1e-9)
        assert live(schedule) == held
    schedule = zb_h1(p, m)
    check(schedule)
    assert live(schedule) == [min(p, m)] * p
    for v in (2, 3, 4):
        if m % p == 0 or m < 2 * p:
            schedule, group = interleaved(p, m, v), p if m % p == 0 else m
            check(schedule)
            lanes = timeline(schedule, 1 / v, 1 / v, 1 / v)
            waits = p - 1 + (v - 1) * max(p - m, 0)  # for a group that is shorter than the way
            assert bubble(lanes) == pytest.approx(waits / (v * m + waits), abs=1e-9)
            assert live(schedule) == [min(2 * (p - r - 1) + (v - 1) * group + 1, v * m)
                                      for r in range(p)]
            assert rank_of_stage(schedule) == [s % p for s in range(p * v)]


def test_zero_bubble_idles_a_third_of_1f1b():
    """F = B = W = 1, p = 4, m = 8: 24 units of work a rank."""
    plain, split, several = (timeline(one_f_one_b(4, 8)), timeline(zb_h1(4, 8)),
                             timeline(interleaved(4, 8, 2), 0.5, 0.5, 0.5))
    assert [makespan(x) for x in (plain, split, several)] == [33, 27, 28.5]
    first = [x[0] for x in (plain, split, several)]  # rank 0's lane, which begins at 0
    assert [lane[-1].end - 24 for lane in first] == [9, 3, 4.5]
    assert live(interleaved(4, 8, 2)) == [11, 9, 7, 5]


@pytest.mark.parametrize("p, k", [*itertools.product((3, 4, 8), (2, 3))])
def test_exposed_messages_are_their_formulas(p, k):
    """c seconds a hop, small: not 2 (p - 1) c, except for GPipe."""
    m, c = p * k, 1e-3

    def exposed(schedule, part=1):
        late, soon = (makespan(timeline(schedule, part, part, part, hop=hop)) for hop in (c, 0))
        return (late - soon) / c

    assert exposed(gpipe(p, m)) == pytest.approx(2 * (p - 1))
    assert exposed(one_f_one_b(p, m)) == pytest.approx(2 * (p - 1) * k + 2 * (p - 2))
    assert exposed(zb_h1(p, m)) == pytest.approx(4 * (p - 1))
    assert exposed(interleaved(p, m, 2), 0.5) == pytest.approx(2 * (2 * p - 1))


def test_uneven_stages():
    """GPipe: the sum over the stages, and (m - 1) times the largest F and the largest B."""
    f, b = [1, 1, 1, 2], [2, 2, 2, 4]
    for schedule in (gpipe(4, 8), one_f_one_b(4, 8)):
        assert makespan(timeline(schedule, f, b, 0)) == 57
    assert makespan(timeline(gpipe(4, 8), [1.25] * 4, 2.5, 0)) == 41.25


def test_a_timeline_says_when_each_part_runs():
    lanes = timeline(gpipe(2, 1), F=1, B=2, W=3, hop=0.5)
    assert lanes == [[At(Do("F", 0, 0), 0, 1), At(Do("B", 0, 0), 8, 13)],
                     [At(Do("F", 1, 0), 1.5, 2.5), At(Do("B", 1, 0), 2.5, 7.5)]]
    assert makespan(timeline(interleaved(1, 2, 2), hop=0.5)) == 12  # no message within a rank


def changed(schedule, rank, *places):
    """The schedule with two parts of a rank in each other's place."""
    a, b = places
    schedule[rank][a], schedule[rank][b] = schedule[rank][b], schedule[rank][a]
    return schedule


@pytest.mark.parametrize("schedule, said", [
    (changed(one_f_one_b(2, 2), 1, 0, 1), "rank 1: .* part F of micro-batch 0 before part B"),
    (changed(zb_h1(2, 2), 0, 2, 3), "rank 0: .* part B of micro-batch 0 before part W"),
    (changed(gpipe(2, 3), 0, 0, 1), r"order; got \[1, 0, 2\] in stage 0, and \[0, 1, 2\]"),
    ([gpipe(2, 2)[0], gpipe(2, 2)[1][:-1]], "no part B of stage 1 for micro-batch 1"),
    ([gpipe(2, 2)[0], [*gpipe(2, 2)[1], Do("B", 1, 1)]], "part B of .* micro-batch 1 2 times"),
    ([gpipe(2, 2)[0], [*gpipe(2, 2)[1], Do("F", 0, 1)]], "of stage 0 on rank 0 and on rank 1"),
    ([gpipe(2, 2)[0], [*gpipe(2, 2)[1], Do("X", 1, 1)]], "got 'X', for stage 1 and micro-batch 1"),
    ([gpipe(3, 2)[0], gpipe(3, 2)[2]], r"wants stages 0, 1, 2, .* got stages \[0, 2\]"),
    ([list(map(lambda w: Do(w[0], 0, int(w[1])), "F0 B0 F1 B1".split())),
      list(map(lambda w: Do(w[0], 1, int(w[1])), "F0 F1 B0 B1".split()))],
     "deadlock: rank 0: B0.0 waits for B1.0 of rank 1; rank 1: F1.1 waits for F0.1 of rank 0"),
])
def test_what_cannot_run_is_refused(schedule, said):
    with pytest.raises(ValueError, match=said):
        check(schedule)


def test_a_rank_that_does_not_take_messages_in_time_is_refused():
    """Rank 0 would have to keep F0.1 and F0.2 until rank 1 has done F3.0, which waits for F2.0."""
    backwards = [Do("B", stage, i) for stage in (3, 2, 1, 0) for i in range(3)]
    schedule = [[Do("F", int(w[0]), int(w[2])) for w in line.split()]
                for line in ("0.0 0.1 0.2 2.0 2.1 2.2", "1.0 3.0 1.1 3.1 1.2 3.2")]
    for rank, dos in enumerate(schedule):
        dos += [do for do in backwards if do.stage % 2 == rank]
    said = "rank 0: F0.2 waits until rank 1 takes the result of F0.1"
    with pytest.raises(ValueError, match=said):
        check(schedule)
    schedule[0][2:4] = schedule[0][3], schedule[0][2]
    check(schedule)


@pytest.mark.parametrize("make, said", [
    (lambda: interleaved(4, 9, 2), "divisible by 4, or smaller than 8; got m=9. Use m=8 or "
                                   "m=12"),
    (lambda: gpipe(0, 1), "wants at least 1 as p .*; got p=0"),
    (lambda: one_f_one_b(2, 0), "wants at least 1 as m .*; got m=0"),
])
def test_schedules_that_there_are_not(make, said):
    with pytest.raises(ValueError, match=said):
        make()
