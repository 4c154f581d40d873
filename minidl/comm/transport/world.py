"""`minidl.comm.world()`: the transport of all processes that mpiexec started.

    mpiexec -n 4 python script.py          t = minidl.comm.world(): rank 0..3 of 4

    MPITransport           bytes between processes (mpi.py); one that heals under --heal (ulfm.py)
      Throttled            around it if there is a network to imitate (MINIDL_NET)
        Watch              around both, which says why a run hangs; without: MINIDL_WATCH=no

MPI comes with `pip install mpi4py mpich`; Open MPI or a site's own works as well, if mpiexec and
mpi4py belong to the same one.

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
    """The transport of all processes that mpiexec started (COMM_WORLD).

    From now on an uncaught exception on one of them ends all (abort.py). Raises RuntimeError if MPI
    was started without thread support, or by the launcher of another MPI. Throttled to the network
    in the environment variable MINIDL_NET (links_text.py), which `minidl run --net` sets, and
    watched (watch.py) under `minidl run` and under plain mpiexec. MINIDL_WATCH is its deadline in
    seconds (0: none), or "no", which `minidl run --no-watch` sets. Ranks that heal have no Watch,
    which would end them all."""
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
    """Before MPI is loaded. UCX, by which MPICH sends, remembers what memory a network card may
    read. For that it notes each piece that the process gives back to the system, in 144 bytes that
    it keeps until a card is to read something: on one host, never. A Python thread that ends gives
    back a piece, and ZeRO 3 has some in each step: 2 KiB more held with every step. MPICH's mpiexec
    says how many ranks are on this host; where nobody does, there may be such a card."""
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
    """If mpiexec and mpi4py belong to different MPIs, every process says 'rank 0 of 1'."""
    for _, name in supervised.LAUNCHERS:
        started = environ.get(name, "")
        if size == 1 and started.isdigit() and int(started) > 1:
            raise RuntimeError(
                f"rank 0: wanted {started} ranks, as the launcher started ({name}={started}); got "
                "'rank 0 of 1' from MPI. mpiexec and mpi4py belong to different MPIs. Use "
                f"{os.path.join(os.path.dirname(sys.executable), 'mpiexec')} or `minidl run`, on "
                "Slurm `srun --mpi=pmi2`; `minidl doctor` shows both.")
