"""Communication between ranks: arrays only, never a Tensor. Can be read, taught and tested alone.

Ranks and the network
    transport.py    the protocol every algorithm is written against, and its rules: start here
    collective.py   what makes a function a collective: a label, a word to the transport
    checks.py       what every algorithm asks of its arguments
    sim.py          ranks as greenlets in one process, with a modelled clock
    sim_network.py  what simulated ranks share: messages on their way, ports
    scheduler.py    which simulated rank runs next; the deadlock report
    links.py        alpha and beta of every pair, nodes, shared NICs, stragglers
    links_text.py   the same as a line of text
    mpi.py          ranks as MPI processes
    abort.py        one rank that fails ends all
    throttled.py    MPI made as slow as a given network
    window.py       memory that the ranks of a node share
    background.py   one communication thread, first in first out
    objects.py      Python objects as messages: broadcast, gather, all-gather
    rpc.py          run a function on another rank, get its result or its error

Collectives
    naive.py        gather, add, broadcast: the oracle
    chunks.py       how a vector is cut into n chunks
    ring.py         reduce-scatter, all-gather, all-reduce around a ring
    ring_blocks.py  the same with blocks of any length, of which rank r owns block r
    tree.py         binomial broadcast, reduce, all-reduce, barrier
    chain.py        broadcast in segments, from rank to rank
    halving_doubling.py  the ring's bytes in 2 log2 n steps
    double_tree.py  two trees, half of the data on each, in segments
    hierarchical.py inside the nodes, then between them
    shared_memory.py  one copy instead of two, through a window
    scatter_gather.py  from one rank to all and back: binomial tree, and direct
    all_to_all.py   every rank has a block for every rank; equal blocks, or rows by count
    average.py      the mean over ranks, by any all-reduce
    codec.py        float16, int8 and (index, value) payloads of an array
    compressed.py   all-reduce of such payloads
    device.py       CUDA arrays: staged through pinned memory, or directly
    nccl.py         NCCL behind the same calls
    cost.py         the alpha-beta-gamma formulas
    select.py       the fastest all-reduce for a size, by cost.py and measured figures

Counted and explained
    ledger.py       counts bytes and messages by peer, collective, group and line of code
    watch.py        ranks agree on a collective before it starts
    signature.py    on what they agree: a call as data
    lookout.py      where is every rank?
    side_channel.py how the lookouts talk
    waits.py        who waits for whom, and can anybody go on?
    places.py       the file and line of the user's code

    t = minidl.comm.world()                                # one MPI process per rank, or
    minidl.comm.simulate(4, lambda t: ring.all_reduce(t, x))   # four ranks in this process

Importing this package imports neither mpi4py nor greenlet: the submodules load on first use.
"""

import importlib
import pkgutil

_SUBMODULES = tuple(module.name for module in pkgutil.iter_modules(__path__))


def world(**options):
    """The transport of all MPI processes; see `mpi.world`."""
    from . import mpi

    return mpi.world(**options)


def simulate(n, fn, *args, **options):
    """Run `fn(t, *args)` as n ranks in this process; see `sim.simulate`."""
    from . import sim

    return sim.simulate(n, fn, *args, **options)


def __getattr__(name):
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_SUBMODULES])
