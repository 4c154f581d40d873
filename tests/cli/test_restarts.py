"""minidl run --restarts: who is started again, when it gives up, and what it says."""

import re
from types import SimpleNamespace

import pytest

from minidl.cli import restarts
from minidl.cli.launcher import LaunchError, run
from tests.cli.faults import minidl_run
from tests.cli.test_supervisor import END, lives, supervise
from tests.mpi.launch import require_mpi


def ended(n, status=1, how="was killed by SIGKILL", failed=(1,), step=7, born=None,
          interrupted=False):
    """(status, a supervisor) of an attempt on n ranks."""
    born = n if born is None else born
    ranks = [SimpleNamespace(name=i, step=step, begins=None if step is None else 0)
             for i in range(born)]
    return status, SimpleNamespace(
        ranks=ranks, left=lambda: ranks, failure=how if status else None, interrupted=interrupted,
        failed=[r for r in ranks if r.name in failed] if status else [])


def follow(n, least, n_restarts, *attempts):
    """(status, numbers of ranks started, what was said); attempts: the arguments of `ended`."""
    started, said = [], []

    def start(ranks, number):
        assert number == len(started) + 1
        started.append(ranks)
        return ended(ranks, **attempts[number - 1])

    status = restarts.until_done(start, n, least, n_restarts, said.append)
    return status, started, "".join(said)


DONE = {"status": 0, "step": 11}


def test_a_run_that_succeeds_says_nothing():
    assert follow(4, 4, 3, DONE) == (0, [4], "")


def test_without_restarts_a_failure_is_as_ever():
    assert follow(4, 4, 0, {"status": 137}) == (137, [4], "")


def test_all_ranks_start_again_after_a_failure_and_the_table_has_both():
    status, started, said = follow(4, 4, 3, {"status": 137}, DONE)
    assert (status, started) == (0, [4, 4])
    first, head, one, two = said.splitlines()
    assert first == "minidl run: attempt 1 ended at step 7; starting 4 ranks again"
    assert head.split() == ["attempt", "ranks", "from", "step", "to", "step", "seconds", "failed",
                            "what", "ended", "it"]
    assert re.fullmatch(r" +1 +4 +0 +7 +0\.0 +rank 1  was killed by SIGKILL", one)
    assert re.fullmatch(r" +2 +4 +0 +11 +0\.0 +-  done", two)


def test_the_same_step_failing_twice_in_the_same_way_is_a_bug():
    status, started, said = follow(4, 4, 9, {"failed": (1,)}, {"failed": (2,)})
    assert (status, started) == (1, [4, 4]) and "This is a bug, so" in said


@pytest.mark.parametrize("one, two", [
    ("ValueError: bad <object at 0x7f1a2b3c>", "ValueError: bad <object at 0x7fFFe0>"),
    ("OSError: process 4711 is gone", "OSError: process 12 is gone"),
    ("RuntimeError: pid=7: no", "RuntimeError: pid=77: no"),
    ("TimeoutError: no answer in 1.52 s", "TimeoutError: no answer in 12 s"),
    ("RuntimeError: at 10:31:07 on 2026-01-31", "RuntimeError: at 9:02:59.5 on 2026-02-01"),
    ("OSError: 127.0.0.1:43121 refused", "OSError: 127.0.0.1:9999 refused"),
    ("FileNotFoundError: /tmp/tmpab12cd_3/x", "FileNotFoundError: /tmp/tmpzzzzzzzz/x"),
    ("KeyError: 140213372817104", "KeyError: 140213372000001"),
    ("ValueError: rank 0: wanted 3 rows", "ValueError: rank 2: wanted 3 rows")])
def test_the_same_way_has_other_addresses_and_times(one, two):
    """Red before: a bug whose message had the address of an object was started until the end."""
    status, started, said = follow(4, 4, 9, {"how": one}, {"how": two})
    assert (status, started) == (1, [4, 4]) and "This is a bug, so" in said


@pytest.mark.parametrize("one, two", [
    ("OSError: [Errno 5]", "OSError: [Errno 28]"), ("at a.py:3", "at a.py:4"),
    ("ValueError: wanted (3, 4)", "ValueError: wanted (3, 5)"), ("tmpfile", "tmpdir")])
def test_other_numbers_are_another_way(one, two):
    _, started, said = follow(4, 4, 9, {"how": one}, {"how": two}, DONE)
    assert started == [4, 4, 4] and "bug" not in said


@pytest.mark.parametrize("other", [{"step": 8}, {"how": "KeyError: 'x' at train.py:3"},
                                   {"status": 139}])
def test_another_step_or_another_way_is_not(other):
    status, started, said = follow(4, 4, 9, {"failed": (2,)}, {"failed": (1,)} | other, DONE)
    assert (status, started) == (0, [4, 4, 4]) and "bug" not in said


def test_restarts_are_spent():
    attempts = [{"step": step, "failed": (step % 4,)} for step in range(3)]
    status, started, said = follow(4, 4, 2, *attempts)
    assert (status, started) == (1, [4, 4, 4]) and "all restarts are used: 2" in said


def test_a_signal_to_the_launcher_starts_nothing_again():
    assert follow(2, 2, 3, {"status": 130, "interrupted": True})[:2] == (130, [2])


def test_a_rank_that_does_not_start_is_left_out_and_later_tried_again():
    lost = {"born": 3, "step": None, "how": "not started 60 s after the first rank", "failed": ()}
    status, started, _ = follow(4, 2, 9, lost, {"step": 9}, DONE)
    assert (status, started) == (0, [4, 3, 4])


def test_fewer_ranks_than_min_ranks_are_not_started():
    lost = {"born": 2, "step": None, "how": "not started 60 s after the first rank", "failed": ()}
    status, started, said = follow(4, 3, 9, lost)
    assert (status, started) == (1, [4]) and "2 of 4 ranks could be started" in said


def test_a_rank_that_fails_twice_running_at_other_steps_loses_its_place():
    status, started, _ = follow(4, 3, 9, {"step": 3}, {"step": 5}, {"step": 8}, DONE)
    assert (status, started) == (0, [4, 4, 3, 4])


def test_where_no_rank_may_be_missing_all_start_again():
    status, started, _ = follow(4, 4, 3, {"step": 3}, {"step": 5}, DONE)
    assert (status, started) == (0, [4, 4, 4])


def test_min_ranks_must_be_possible():
    with pytest.raises(LaunchError, match="--min-ranks: wanted 1 to 2, .* got 3"):
        run(__file__, [], 2, restarts=1, min_ranks=3)


# -- what the supervisor knows


def steps(rank, *numbers):
    return [(rank, "born", {"say": "step", "step": step}) for step in numbers]


def test_ranks_that_do_no_step_are_silent():
    lines = [*lives(0, "joined"), *lives(1, "joined"), *steps(0, 4, 5), *steps(1, 4)]
    status, said = supervise(lines, silence_s=0.3, ends_s=2)
    assert status == 1 and "no rank has done a step for 0.3 s (--silence)" in said
    assert "rank 1 (process 101 on a) does not answer" in said


def test_of_the_silent_the_stopped_one_is_named():
    lines = [*lives(0, "joined"), *lives(1, "joined"), *steps(0, 5), *steps(1, 5),
             (1, "guard", {"say": "stopped"})]
    _, said = supervise(lines, silence_s=0.3, ends_s=2)
    assert "rank 1 (process 101 on a) was stopped" in said and "rank 0 (" not in said


def test_ranks_that_have_trained_may_be_silent():
    lines = [*lives(0, "joined"), *lives(1, "joined"), *steps(0, 5), *steps(1, 5)]
    lines += [(rank, "born", {"say": "trained", "first": rank == 0})
              for rank in (0, 1)]
    assert supervise(lines, silence_s=0.2, ends_s=0.7, ends_with=7) == (7, "")


def test_a_second_training_in_the_script_is_listened_to_again():
    known, lines = [], [*lives(0, "joined"), *steps(0, 0, 9), ENDS[0], *steps(0, 3, 4)]
    _, said = supervise(lines, n=1, keep=known, silence_s=0.3, ends_s=2)
    assert "no rank has done a step" in said
    assert (known[0].ranks[0].begins, known[0].ranks[0].step) == (3, 4)


MORE = [*lives(0, "joined"), *steps(0, 0, 5), *lives(1, "joined"), *steps(1, 0, 5),
        (1, "guard", {"say": "exit", "status": -9})]
ENDS = [(0, "born", {"say": "trained", "first": True}), (0, "born", END)]


@pytest.mark.parametrize("ends, step", [
    ([*steps(0, 5, 8), *ENDS, (0, "guard", {"say": "exit", "status": 0})], 8),
    ([*steps(0, 5, 6), (0, "guard", {"say": "exit", "status": -9})], 6)])
def test_of_a_run_that_heals_the_step_is_that_of_the_ranks_that_are_left(ends, step):
    """Or was, when nobody is left."""
    known = []
    status, _ = supervise([*MORE, *ends], keep=known, heal=True)
    attempt = restarts.attempt_of(2, status, known[0], 1.0)
    assert (status, attempt.begins, attempt.step) == (int(step == 6), 0, step)


@pytest.mark.parametrize("last, wanted", [(ENDS[0], 7), (steps(0, 6)[0], 1)])
def test_for_a_rank_that_was_lost_nobody_waits(last, wanted):
    """The one that is left has trained, and may be silent; or it has not."""
    status, said = supervise([*MORE, last], silence_s=0.3, ends_s=1.5, ends_with=7, heal=True)
    assert status == wanted and ("no rank has done a step for 0.3 s" in said) == (wanted == 1)
    assert "rank 0 (" not in said if wanted == 7 else "rank 0 (process 100 on a)" in said
    assert said.count("rank 1 (") == 1  # that it was killed


def test_a_replacement_is_listened_to():
    """There are more processes then than ranks."""
    lines = [*MORE, *lives(2, "joined"), *steps(0, 6), *steps(2, 6)]
    _, said = supervise(lines, silence_s=0.3, ends_s=2, ends_with=7, heal=True)
    assert "no rank has done a step for 0.3 s" in said


def test_before_the_first_step_ranks_may_be_silent_as_long_as_they_may_start():
    lines = [*lives(0, "joined"), *lives(1, "joined")]
    assert supervise(lines, silence_s=0.1, start_s=30, ends_s=0.7, ends_with=7) == (7, "")
    _, said = supervise(lines, silence_s=0.1, start_s=0.3, ends_s=2)
    assert "no rank has done a step for 0.3 s" in said


def test_what_a_rank_says_of_its_failure_is_remembered():
    lines = [*lives(0, "joined"), *lives(1, "joined"), *steps(1, 0, 5),
             (1, "born", {"say": "why", "how": "KeyError: 'x'", "line": "a.py:3"}),
             (1, "born", {"say": "failed", "status": 1})]
    known = []
    status, _ = supervise(lines, keep=known, ends_s=1)
    attempt = restarts.attempt_of(2, status, known[0], 1.0)
    assert attempt == restarts.Attempt(2, 0, 5, 1.0, "KeyError: 'x' at a.py:3", (1,), 0, 1)


# -- under MPI; killed, stopped, ...: tests/chaos

BUG = """\
import sys
from minidl import elastic
from tests.elastic import runs
def train(t, step, **objects):
    runs.step(t, step, **objects)
    if step == 4:
        raise KeyError("always")
elastic.run(train, runs.state("dp"), 11, sys.argv[1], 3)
"""


@pytest.mark.mpi
def test_a_bug_ends_the_run_after_the_second_time(tmp_path):
    require_mpi()
    (tmp_path / "bug.py").write_text(BUG)
    done = minidl_run("mpi", "--restarts", 5, tmp_path / "bug.py", tmp_path / "runs", n=2)
    assert done.returncode == 1 and "This is a bug, so" in done.stderr, done.stderr
    assert done.stderr.count("starting 2 ranks again") == 1
    assert len(re.findall("KeyError: 'always' at .*bug.py:7$", done.stderr, re.M)) == 2
