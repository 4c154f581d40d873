"""`minidl.comm.world()`: the transport of all processes that mpiexec started.

    mpiexec -n 4 python script.py          t = minidl.comm.world(): rank 0..3 of 4

    MPITransport           sends bytes between processes (mpi.py). With --heal, ranks continue when
                           a rank has died (ulfm.py)
      Throttled            is around MPITransport, if MINIDL_NET describes a network to imitate
        Watch              is the outermost transport. It reports why a run hangs. With
                           MINIDL_WATCH=no there is no Watch

`pip install mpi4py mpich` installs MPI. Open MPI or the MPI of a cluster works, too. mpiexec and
mpi4py must belong to the same MPI.

Test: tests/mpi/test_mpi_transport.py   Tutorial: tutorials/00_hello.py
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from minidl.backend import optional
from minidl.comm.observe.watch import DEADLINE_S, Watch
from minidl.comm.transport import communicators, supervised, ulfm
from minidl.comm.transport.abort import abort_on_failure, forget_shared_memory
from minidl.comm.transport.links_text import parse
from minidl.comm.transport.mpi import PART_BYTES, MPITransport
from minidl.comm.transport.throttled import Throttled

if TYPE_CHECKING:
    from minidl.comm.transport.protocol import Transport


def world(part_bytes: int = PART_BYTES) -> Transport:
    """Returns the transport of all processes that mpiexec started (COMM_WORLD).

    From now on an uncaught exception on one rank ends all ranks (abort.py). Three environment
    variables choose the layers of the transport:

    MINIDL_NET     a network (links_text.py). Messages are as slow as on this network. `minidl run
                   --net` sets this variable
    MINIDL_WATCH   the Watch's deadline in seconds. 0 means no deadline. "no" means no Watch, as
                   with `minidl run --no-watch`. Without this variable there is a Watch with a
                   deadline of 300 s
    MINIDL_HEAL    if 1, ranks continue when a rank has died, as with `minidl run --heal`. Then
                   there is no Watch, because a Watch ends all ranks if a rank dies

    part_bytes: the largest part of a message (mpi.py). Raises RuntimeError if MPI was started
    without thread support, or by the launcher of another MPI."""
    supervised.say("joining")
    _no_registrations_on_one_host(os.environ)
    with optional("ranks as processes", "mpi"):
        from mpi4py import MPI

    _check_threads(MPI)
    _check_launcher(MPI.COMM_WORLD.size, os.environ)
    abort_on_failure(MPI)
    heals = os.environ.get("MINIDL_HEAL") == "1"
    if heals:
        t = ulfm.world(MPI, part_bytes)
    else:
        t = MPITransport(communicators.Communicators(MPI.COMM_WORLD), part_bytes)
    forget_shared_memory()
    net = os.environ.get("MINIDL_NET")
    t = Throttled(t, parse(net, t.size)) if net else t
    deadline = os.environ.get("MINIDL_WATCH") or DEADLINE_S
    if deadline != "no" and t.size > 1 and not heals:
        t = Watch(t, float(deadline) or None)
    supervised.say("joined", rank=t.rank)
    return t


def _no_registrations_on_one_host(environ):
    """Switches off a table of UCX that grows with every step. Call it before MPI is loaded.

    MPICH sends by UCX, which remembers the memory that a network card may read. When the process
    returns a piece of memory to the system, UCX writes a note of 144 bytes. UCX frees these notes
    when a card next reads memory. If all ranks are on one host, no card reads memory. When a Python
    thread ends, it returns a piece of memory. In ZeRO 3 some threads end in each step. So without
    this function the table grows by 2 KiB with every step.

    MPICH's mpiexec tells how many ranks are on this host. Other launchers do not tell this number.
    Then ranks may use a network card, so the table is not switched off."""
    here = environ.get("MPI_LOCALNRANKS")
    if here is not None and here == environ.get("PMI_SIZE"):
        environ.setdefault("UCX_RCACHE_ENABLE", "n")


def _check_threads(mpi):
    if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        names = {mpi.THREAD_SINGLE: "MPI_THREAD_SINGLE",
                 mpi.THREAD_FUNNELED: "MPI_THREAD_FUNNELED",
                 mpi.THREAD_SERIALIZED: "MPI_THREAD_SERIALIZED"}
        raise RuntimeError(
            f"rank {mpi.COMM_WORLD.rank}: background communication needs MPI_THREAD_MULTIPLE; this "
            f"MPI runs with {names[mpi.Query_thread()]}. Remove mpi4py.rc settings that lower "
            "thread_level, or use an MPI built with thread support (pip install mpich).")


def _check_launcher(size, environ):
    """Raises RuntimeError if mpiexec and mpi4py belong to different MPIs. In this case MPI tells
    every process that it is rank 0 of 1.

    environ: the environment variables. In one of them the launcher wrote how many ranks it
    started."""
    for _, name in supervised.LAUNCHERS:
        started = environ.get(name, "")
        if size == 1 and started.isdigit() and int(started) > 1:
            raise RuntimeError(
                f"rank 0: the launcher started {started} ranks ({name}={started}), but MPI says "
                "that this is rank 0 of 1. So mpiexec and mpi4py belong to different MPIs. Start "
                f"with {os.path.join(os.path.dirname(sys.executable), 'mpiexec')} or `minidl run`; "
                "on Slurm with `srun --mpi=pmi2`. `minidl doctor` shows the two MPIs.")
