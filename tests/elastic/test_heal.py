"""heal.run without a death is a loop; what it asks of the ranks. With deaths: test_heal_mpi.py."""

import pytest

import minidl
from minidl import optim, snapshot
from minidl.cli import launcher
from minidl.comm import simulate
from minidl.comm.transport.scheduler import RankFailed
from minidl.elastic import buddy, heal
from minidl.parallel import DiLoCo, LocalSGD
from tests.conftest import some
from tests.elastic.bodies import STAGES, Net, state_of, train, weights


@pytest.mark.parametrize("stage", some(STAGES, of=4))
def test_without_a_death_it_is_a_loop(stage, tmp_path):
    def loop(t):
        named = state_of(stage)(t)
        for step in range(4):
            train(t, step, **named)
        return weights(named)

    for n in (1, 2, 3):
        folder = tmp_path / f"{n}"
        plain = simulate(n, loop)
        assert plain == simulate(n, lambda t: weights(
            heal.run(train, state_of(stage), 4, folder, every=3, t=t)))  # noqa: B023
        assert snapshot.latest(folder) == 3
        # and it begins at the last snapshot
        done = []
        again = simulate(n, lambda t: weights(heal.run(
            lambda t, step, **named: (done.append(step), train(t, step, **named)),  # noqa: B023
            state_of(stage), 4, folder, every=0, t=t)))  # noqa: B023
        assert again == plain and set(done) == {3}


def test_a_snapshot_is_written_behind_the_next_step(tmp_path):
    """When a step begins its snapshot is not on the disk; when run() returns, the last one is."""
    said = []

    def noting(t, step, **named):
        said.append((step, snapshot.latest(tmp_path)))
        train(t, step, **named)

    simulate(2, lambda t: heal.run(noting, state_of("zero1"), 4, tmp_path, every=1, t=t))
    assert [last for _, last in sorted(said, key=str)[::2]][1:] == [None, 1, 2]
    assert snapshot.latest(tmp_path) == 3


def test_the_launcher_hears_every_step_and_the_end(tmp_path, monkeypatch):
    """Red before: the table of attempts had no steps, and two losses of all ranks at different
    steps were one bug, which is not started a third time."""
    said = []
    monkeypatch.setattr(heal.supervised, "say",
                        lambda what, **more: said.append((what, *more.values())))
    simulate(1, lambda t: heal.run(train, state_of("dp"), 3, tmp_path, every=2, t=t))
    assert said == [("step", 0), ("step", 1), ("step", 2), ("step", 3), ("trained", True)]
    said.clear()
    simulate(1, lambda t: heal.run(train, state_of("dp"), 3, tmp_path, every=0, t=t))
    assert said == [("step", 2), ("step", 3), ("trained", True)]


@pytest.mark.parametrize("kind", [LocalSGD, DiLoCo])
def test_replicas_that_differ_are_refused(kind, tmp_path):
    def state(t):
        optimizer = optim.SGD((net := Net()).parameters(), lr=0.1)
        return {"model": kind(net, t, optimizer, period=2), "optimizer": optimizer}

    with pytest.raises(RankFailed, match=f"each rank of a {kind.__name__} has weights of its own.*"
                                         "--restarts"):
        simulate(2, lambda t: heal.run(train, state, 4, tmp_path, t=t))


def test_each_rank_may_have_a_profile_and_all_ranks_together_may_not(tmp_path):
    """One rank's sends nothing, and goes on where state() makes another model; the other kind is
    refused at once."""
    def healed(t):
        return weights(heal.run(train, state_of("dp"), 4, tmp_path, every=0, t=t))

    def measured(t):
        with minidl.profile() as p:
            healed(t)
            found = healed(t)
        assert len(p.record.steps) == 4 + 4
        return found

    def together(t):
        with minidl.profile(t):
            healed(t)

    assert simulate(2, measured) == simulate(2, healed)
    with pytest.raises(RankFailed, match=r"profile\(t\) asks all ranks at its end.*"
                                         r"minidl.profile\(\) instead"):
        simulate(2, together)


def test_a_bug_is_not_a_death(tmp_path):
    def wrong(t, step, **named):
        raise ZeroDivisionError

    with pytest.raises(RankFailed, match="ZeroDivisionError"):
        simulate(2, lambda t: heal.run(wrong, state_of("dp"), 4, tmp_path, t=t))


def test_what_is_being_written_ends_before_the_survivors_go_on(tmp_path, monkeypatch):
    """A death in step 3, without MPI: one rank is left."""
    done, made = [], []

    def dies_once(t, step, **named):
        if step == 3 and "died" not in done:
            done.append("died")
            raise OSError
        train(t, step, **named)

    class Noted(heal.Parts):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

        def close(self):
            done.append(f"closed {made.index(self)}")
            super().close()

    def survivors(t, n):
        done.append("survivors")
        return t

    monkeypatch.setattr(heal, "Parts", Noted)
    monkeypatch.setattr(heal, "_has_lost", lambda t: True)
    monkeypatch.setattr(heal, "_all_have_ended", lambda t, ended: ended)
    monkeypatch.setattr(heal.ulfm, "revoke", lambda t: done.append("revoked"))
    monkeypatch.setattr(heal.ulfm, "survivors", survivors)
    simulate(1, lambda t: heal.run(dies_once, state_of("dp"), 5, tmp_path, every=2, t=t))
    assert done == ["died", "revoked", "closed 0", "survivors", "closed 1"]
    assert snapshot.latest(tmp_path) == 4


def lost_of_a_grid(alive, state, folder):
    """What the ranks `alive` of a 2 x 2 grid, which has saved step 2 and died in step 3, go on
    from: (step, weights) of each."""
    copied = {}

    def before(t):
        named = state_of("grid")(t)
        copied[t.rank] = buddy.Buddies(t, named)
        for step in range(4):
            copied[t.rank].save(step)
            if step == 2:
                snapshot.save(folder, step, t, **named)
            train(t, step, **named)
        copied[t.rank].settle()

    def after(t):
        step, _, parts = heal._begin(t, state, folder, 9, [copied[alive[t.rank]]], 0.0)
        return step, weights(parts.common)

    simulate(4, before)
    return simulate(len(alive), after)


def test_a_grid_goes_on_from_the_snapshot_on_a_smaller_one_that_the_script_makes(tmp_path):
    """Ranks 1 and 3 die: their buddies live, but their parts have no place on 2 ranks."""
    def state(t):
        return state_of("grid", **(dict(tp=2, pp=2) if t.size == 4 else dict(pp=2)))(t)

    def loaded(t):
        named = state(t)
        return snapshot.load(tmp_path, t, **named), weights(named)

    assert lost_of_a_grid([0, 2], state, tmp_path) == simulate(2, loaded)


def test_a_grid_that_cannot_be_smaller_is_refused_with_the_remedies(tmp_path):
    with pytest.raises(RankFailed, match="a model that is divided over 4 ranks cannot be healed on "
                       "3 ranks: .* = 4 ranks; got 3.*--replacements 1 .*minidl run --restarts"):
        lost_of_a_grid([0, 2, 3], state_of("grid"), tmp_path)


@pytest.mark.parametrize("version, ok", [
    ("mpirun (Open MPI) 5.0.11\n", True), ("mpirun (Open MPI) 4.1.4\n", False),
    ("HYDRA build details:\n    Version: 4.3.0\n", False), ("", False)])
def test_only_open_mpi_5_can_heal(version, ok, tmp_path):
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text(f"#!/bin/sh\necho '{version}'\n")
    mpiexec.chmod(0o755)
    if ok:
        assert launcher.healing([str(mpiexec)]) == ["--with-ft", "ulfm"]
    else:
        with pytest.raises(launcher.LaunchError, match="--heal wants Open MPI 5 .*use --restarts"):
            launcher.healing([str(mpiexec)])


def test_replacements_without_healing_are_refused():
    with pytest.raises(launcher.LaunchError, match="--replacements works only"):
        launcher.run(__file__, [], 2, replacements=1)
