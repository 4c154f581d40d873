"""What only real processes can show: parts of messages, threads, launchers."""

import subprocess
import sys
import textwrap

import pytest

from minidl.comm.transport import world
from tests.conftest import whole_form
from tests.mpi.launch import mpiexec, require_mpi, under_both

pytestmark = pytest.mark.mpi


def script(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    return path


def test_messages_are_cut_into_parts_and_mismatches_still_seen(tmp_path):
    # A limit of 16 bytes stands for 1 GiB; 0 to 49 bytes are 1 to 4 parts, the last maybe empty.
    path = script(
        tmp_path,
        """
        import numpy as np
        from minidl.comm import ring, tree, world
        from minidl.comm.observe.ledger import Ledger
        from minidl.comm.checks import SizeMismatch

        t = world(part_bytes=16)
        other = 1 - t.rank
        for n in (0, 1, 15, 16, 17, 31, 32, 33, 48, 49):
            x = (np.arange(n) + t.rank).astype("u1")
            want = (np.arange(n) + other).astype("u1")
            ledger = Ledger(t)
            assert (ledger.sendrecv(x, other, np.zeros(n, "u1"), other) == want).all()
            into = np.zeros(2 * n, "u1")[::2]
            requests = [ledger.irecv(into, other), ledger.isend(x, other)]
            for request in requests:
                request.wait()
            assert (into == want).all()
            ledger.isend(x, other, 3)
            src, data = ledger.recv_any(3)
            assert src == other and (data == want).all()
            assert ledger.messages_sent == ledger.messages_received == 3
            assert (ring.all_reduce(t, x.astype("i8")) == x.astype("i8") + want).all()

        group = t.subgroup([0, 1])
        assert group._part_bytes == 16
        wrong = 0
        # (sent, expected): other part counts, other last parts, full parts where an end should be.
        for sent, expected in ((15, 16), (16, 15), (16, 17), (32, 16), (16, 32), (48, 0), (40, 8)):
            t = t.subgroup([0, 1])  # what a mismatch leaves behind stays in its own group
            if t.rank == 0:
                t.isend(np.zeros(sent, "u1"), 1)  # not waited for: it may never complete
            else:
                try:
                    t.recv(np.zeros(expected, "u1"), 0)
                except SizeMismatch as error:
                    assert str(error).startswith("rank 1: recv needs"), error
                    wrong += 1
        for sent, expected in ((10, 12), (12, 10)):  # in one call, as in a ring
            t = t.subgroup([0, 1])
            out = np.zeros(5 if t.rank else sent, "u1")
            into = np.zeros(expected if t.rank else 5, "u1")
            try:
                t.sendrecv(out, 1 - t.rank, into, 1 - t.rank)
            except SizeMismatch as error:
                assert str(error).startswith("rank 1: recv needs"), error
                wrong += 1
        t = t.subgroup([0, 1])  # who leaves first ends the other: rank 1 says when it has printed
        if t.rank:
            print("mismatches seen:", wrong, flush=True)
            t.send(np.zeros(1, "u1"), 0)
        else:
            t.recv(np.zeros(1, "u1"), 1)
        import os
        os._exit(0)  # unmatched parts are left over on purpose
        """,
    )
    run = mpiexec(2, path, timeout=60)
    assert "mismatches seen: 9" in run.stdout, run.stderr


def test_a_message_over_the_part_limit_of_a_real_size(tmp_path):
    # 16 MiB in parts of 1.25 MiB: large-message protocols, with requests in flight together.
    path = script(
        tmp_path,
        """
        import numpy as np
        from minidl.comm import ring, world

        t = world(part_bytes=5 << 18)
        x = np.arange(4 << 20, dtype="f4") % 1000 + t.rank
        ring.all_reduce(t, x)
        assert (x == 2 * (np.arange(4 << 20) % 1000) + 1).all()
        """,
    )
    mpiexec(2, path, timeout=60, check=True)


def test_work_that_nobody_waits_for_does_not_keep_the_process(tmp_path):
    path = script(
        tmp_path,
        """
        import threading
        import numpy as np
        from minidl.comm import ring, tree, world
        from minidl.comm.transport.background import Background

        t = world()
        background = Background(t)
        background.submit(ring.all_reduce, np.zeros(10)).wait()
        idle = Background(t)
        t.spawn(threading.Event().wait)  # it never comes back
        tree.barrier(t)
        print("end", flush=True)
        """,
    )
    run = mpiexec(2, path, timeout=60, check=True)
    assert run.stdout.count("end") == 2


@whole_form
@under_both
def test_outside_of_a_collective_a_wait_leaves_the_processor_to_others(tmp_path, mpi):
    """A second of waiting for a receive, one for a send and one in the background: a tenth of it in
    CPU time, where looking all the time takes all. Inside of a collective of the foreground it is
    MPI's own wait."""
    path = script(
        tmp_path,
        """
        import time
        import numpy as np
        from minidl.comm import tree, world
        from minidl.comm.transport.background import Background

        t = world()
        background = Background(t)
        x = np.ones(1 << 22, np.uint8)  # more than MPI keeps for a receiver that is not there yet
        tree.broadcast(t, np.zeros(1), 0)
        background.submit(tree.broadcast, np.zeros(1), 0).wait()  # makes the communicators
        if t.rank == 0:
            time.sleep(1)
            t.send(x, 1)
            time.sleep(1)
            t.recv(x, 1)
            time.sleep(1)
            background.submit(tree.broadcast, np.zeros(1), 0).wait()
        else:
            start, cpu = time.monotonic(), [time.process_time()]
            t.recv(x, 0)
            cpu.append(time.process_time())
            t.send(x, 0)
            cpu.append(time.process_time())
            background.submit(tree.broadcast, np.zeros(1), 0).wait()
            cpu.append(time.process_time())
            assert time.monotonic() - start > 2.9
            assert max(np.diff(cpu)) < 0.35, cpu  # a busy machine gives the one that looks half
        """,
    )
    mpiexec(2, path, timeout=60, check=True, mpi=mpi)


def test_a_launcher_of_another_mpi_is_named():
    require_mpi()
    code = "from minidl.comm import world; world()"
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        with pytest.raises(RuntimeError, match=rf"started 4 ranks.*{name}=4.*rank 0 of 1.*mpiexec"):
            world._check_launcher(1, {name: "4"})
        world._check_launcher(4, {name: "4"})
        world._check_launcher(1, {name: "1"})
    world._check_launcher(1, {"SLURM_NTASKS": "4"})  # a lone process inside an allocation
    alone = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert alone.returncode == 0, alone.stderr  # one process without mpiexec is a world of one
    env = {"OMPI_COMM_WORLD_SIZE": "4"}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={**env}
    )
    assert run.returncode == 1 and "this is rank 0 of 1" in run.stderr


def test_too_little_thread_support_is_named(tmp_path):
    path = script(
        tmp_path,
        """
        import mpi4py
        mpi4py.rc.thread_level = "single"
        from minidl.comm import world
        world()
        """,
    )
    run = mpiexec(1, path, timeout=60)
    assert run.returncode != 0
    assert "needs MPI_THREAD_MULTIPLE; this MPI runs with MPI_THREAD_SINGLE" in run.stderr


def test_memory_that_is_given_back_leaves_nothing(tmp_path):
    """Red before: 2.8 MiB, UCX's notes of 20,000 pieces (world._no_registrations_on_one_host). A
    Python thread that ends gives back such a piece."""
    path = script(tmp_path, """
        import mmap
        from minidl.comm import world

        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * mmap.PAGESIZE

        def give_back(n_pieces):
            for _ in range(n_pieces):
                mmap.mmap(-1, 4 * mmap.PAGESIZE).close()
            return resident()

        t = world()
        assert give_back(1000) + 2**20 > give_back(20_000)
        print("end", flush=True)
        """)
    assert mpiexec(2, path, timeout=60, check=True).stdout.count("end") == 2


@pytest.mark.parametrize("said, is_set", [
    ({"MPI_LOCALNRANKS": "2", "PMI_SIZE": "2"}, True),
    ({"MPI_LOCALNRANKS": "1", "PMI_SIZE": "2"}, False),  # on two hosts
    ({"PMI_SIZE": "2"}, False),  # srun: nobody says
    ({}, False),  # Open MPI's
])
def test_registrations_are_off_on_one_host_alone(said, is_set):
    environ = dict(said)
    world._no_registrations_on_one_host(environ)
    assert environ == said | ({"UCX_RCACHE_ENABLE": "n"} if is_set else {})
    environ = said | {"UCX_RCACHE_ENABLE": "y"}  # the user's own is left
    world._no_registrations_on_one_host(environ)
    assert environ["UCX_RCACHE_ENABLE"] == "y"
