"""What a thread of each healing rank does when MPI waits for ever. With MPI: test_heal_mpi.py."""

import signal
import threading
from types import SimpleNamespace

import pytest

from minidl.comm.transport import ulfm


@pytest.mark.parametrize("making", [True, False])
def test_a_rank_that_makes_a_group_with_a_dead_one_ends_itself(monkeypatch, capsys, making):
    over, revoked, killed = threading.Event(), [], []

    def revoke(held):
        revoked.append(held)
        if len(revoked) == 20:  # else the thread would look for ever
            over.set()

    def kill(pid, number):
        killed.append((len(revoked), number))
        over.set()

    comm = SimpleNamespace(rank=3, Is_revoked=lambda: True)
    held = SimpleNamespace(comm=comm, making=making, made={})
    monkeypatch.setattr(ulfm, "_revoke", revoke)
    monkeypatch.setattr(ulfm.os, "kill", kill)
    monkeypatch.setattr(ulfm, "LOOK_S", 2.0**-10)  # a sum of them is exact
    monkeypatch.setattr(ulfm, "STUCK_S", 10 * 2.0**-10)
    ulfm._look(held, over)
    assert killed == ([(11, signal.SIGKILL)] if making else [])
    assert ("rank 3: another rank died" in capsys.readouterr().err) == making
