"""Groups without end: the ranks of a group that is gone take its communicators for their next one.

And nothing of the old group reaches the new one."""

import os

import pytest

from tests.mpi.launch import mpiexec, under_both
from tests.mpi.test_mpi_transport import script

pytestmark = pytest.mark.mpi


@pytest.mark.slow
@under_both
def test_a_process_may_make_as_many_groups_as_it_likes(mpi, tmp_path):
    """MPICH has numbers for 2,045 communicators, and a group has two; Open MPI has 65,000. `make
    test-mpi` makes more than MPICH has; else the count of those made must do."""
    n_groups = 1100 if (mpi, os.environ.get("MINIDL_EVERY_SIZE")) == ("mpi", "1") else 101
    path = script(tmp_path, """
        import sys
        import numpy as np
        from minidl.comm import ring, world
        from minidl.comm.transport.background import Background

        t = world()
        for i in range(int(sys.argv[1])):
            group = t.subgroup((0, 1))
            assert ring.all_reduce(group, np.array([i]))[0] == 2 * i
            if i % 10 == 0:
                pair = t.subgroup([1, 0])  # in another order; and of the last group
                inner = group.subgroup((0, 1))
                for each in (pair, inner):
                    assert ring.all_reduce(each, np.array([i]))[0] == 2 * i
            if i % 100 == 0:
                Background(t).submit(ring.all_reduce, np.ones(3)).wait()
        made = t.innermost._held.made
        # one is held while the next is made; a background task's lives a moment longer
        assert len(made[0, 1]) <= 4 and len(made[1, 0]) == 2, made
        print("end", flush=True)
        """)
    run = mpiexec(2, path, n_groups, timeout=110, mpi=mpi, check=True)
    assert run.stdout.count("end") == 2


@under_both
def test_what_nobody_received_does_not_reach_the_next_group(mpi, tmp_path):
    path = script(tmp_path, """
        import threading
        import numpy as np
        from minidl.comm import ring, tree, world

        t = world(part_bytes=1 << 16)
        other = 1 - t.rank
        for i in range(40):
            group = t.subgroup([0, 1])
            stale = [group.isend(np.full(n, 7, "u1"), other, tag)  # small, and by a rendezvous
                     for n in (0, 5, 300_000) for tag in (0, 5)]
            with group.named("lost"):
                job = group.in_background(lambda g: g.isend(np.full(4, 9, "u1"), other))
                job.wait()
            ring.all_reduce(group, np.ones(4))
            del group, stale, job
            group = t.subgroup([0, 1])
            for tag in (0, 5):
                into = np.zeros(5, "u1")
                group.sendrecv(np.full(5, i, "u1"), other, into, other, tag)
                assert (into == i).all(), (i, into)
            assert (ring.all_reduce(group, np.full(4, i, "u1")) == 2 * i).all()
            del group
        n_made = len(t.innermost._held.made[0, 1])
        assert n_made <= 4, n_made
        tree.barrier(t)
        print("end", flush=True)
        """)
    run = mpiexec(2, path, timeout=60, mpi=mpi, check=True)
    assert run.stdout.count("end") == 2


@under_both
def test_a_collective_that_one_rank_left_early_does_not_reach_the_next_group(mpi, tmp_path):
    path = script(tmp_path, """
        import numpy as np
        from minidl.comm import ring, world
        from minidl.comm.collective import collective

        @collective
        def told(t, x):
            if t.rank:
                t.isend(x, 0).wait()  # small: MPI keeps it, rank 0 never asks for it

        t = world().innermost
        for i in range(5):
            group = t.subgroup([0, 1])
            assert ring.all_reduce(group, np.array([i]))[0] == 2 * i
            told(group, np.array([7]))
            del group
        assert len(t._held.made[0, 1]) == 1
        print("end", flush=True)
        """)
    run = mpiexec(2, path, timeout=60, mpi=mpi, check=True)
    assert run.stdout.count("end") == 2


@under_both
def test_a_group_that_one_rank_holds_is_not_taken(mpi, tmp_path):
    path = script(tmp_path, """
        import numpy as np
        from minidl.comm import ring, shared_memory, world

        t = world()
        kept = [t.subgroup([0, 1])]
        if t.rank:
            first = kept.pop()
            del first
        for i in range(5):
            t.subgroup([0, 1])
        assert [each.is_free() for each in t.innermost._held.made[0, 1]] == [t.rank == 1, True]
        kept.clear()
        group = t.subgroup([0, 1])
        assert group._comm is t.innermost._held.made[0, 1][0].comm
        # a receive that nobody waited for would take what another group sends
        request = group.irecv(np.zeros(3), 1 - t.rank)
        del group, request
        group = t.subgroup([0, 1])
        assert group._comm is t.innermost._held.made[0, 1][1].comm
        # shared memory goes on with the group, its signals begin again
        for i in range(6):
            assert (shared_memory.all_reduce(group, np.full(1000, i)) == 2 * i).all()
            if i == 3 and t.rank:
                next(iter(group._windows.values())).signal(0, 1)  # one that nobody waits for
            windows = group._held.windows
            del group
            group = t.subgroup([0, 1])
            assert windows is group._held.windows and windows
        print("end", flush=True)
        """)
    run = mpiexec(2, path, timeout=60, mpi=mpi, check=True)
    assert run.stdout.count("end") == 2


def test_too_many_groups_at_a_time_are_an_error_with_a_remedy(tmp_path):
    path = script(tmp_path, """
        from minidl.comm import world
        from minidl.comm.transport import communicators

        t, kept = world(), []
        real, n_made = communicators.create, 0

        class NoMore(t.innermost._mpi.Exception):
            pass

        def create(mpi, parent, ranks):
            if len(kept) == 4:
                raise NoMore(mpi.ERR_OTHER)
            return real(mpi, parent, ranks)

        communicators.create = create
        try:
            while True:
                kept.append(t.subgroup([0, 1]))
        except RuntimeError as error:
            print(error, flush=True)
        cycle = [kept.pop(0)]  # garbage, but not yet collected
        cycle.append(cycle)
        kept.append(None)
        del cycle
        assert t.subgroup([0, 1]).size == 2
        """)
    run = mpiexec(2, path, timeout=60, check=True)
    assert run.stdout.count("MPI cannot make another communicator; this group has made 4 "
                            "subgroups. Delete subgroups on all their ranks") == 2, run.stdout


def test_counters_of_a_group_go_with_it(tmp_path):
    path = script(tmp_path, """
        import numpy as np
        from minidl.comm import ring, world
        from minidl.comm.observe.watch import Watch

        t = Watch(world())
        counters, after = t._lookout.book.counters, []
        for i in range(30):
            group = t.subgroup([0, 1])
            if t.rank:
                group.send(np.ones(3), 0, 5)
            else:
                group.recv(np.zeros(3), 1, 5)
            assert ring.all_reduce(group, np.array([i]))[0] == 2 * i
            after.append(len(counters))
        assert after[9] == after[29] < 20, after
        print("end", flush=True)
        """)
    assert mpiexec(2, path, timeout=60, check=True).stdout.count("end") == 2
