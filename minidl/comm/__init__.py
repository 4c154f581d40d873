"""Communication between ranks. It needs only arrays, so you can read and test it without autograd.

Ranks and the network
    transport/      the protocol that every algorithm uses: over MPI, or within one process
    collective.py   the decorator of a collective: it labels the messages and informs a Watch
    labels.py       the name of the running collective
    call_code.py    a number in each message shows whether all ranks are in the same call
    checks.py       errors for wrong arguments, before anything is sent
    objects.py      Python objects as messages: broadcast, gather, all-gather
    framing.py      a message with a header
    rpc.py          runs a function on another rank; returns the function's result or error

Collectives
    chunks.py       how a vector is cut into n chunks
    ring.py         reduce-scatter, all-gather, all-reduce around a ring
    ring_blocks.py  the ring with blocks of any length; rank r owns block r
    tree.py         binomial broadcast, reduce, all-reduce, barrier
    halving_doubling.py  all-reduce in 2 log2 n steps; it sends as many bytes as the ring
    double_tree.py  all-reduce by two trees: each tree sums half of the array, in segments
    hierarchical.py all-reduce inside the nodes, then between the nodes
    shared_memory.py  all-reduce through memory that ranks share: copies an array once, not twice
    scatter_gather.py  sends a block of one rank's array to each rank, or collects the blocks
    all_to_all.py   every rank sends a block to every rank; blocks may differ in length
    average.py      the mean over ranks, computed with any all-reduce
    codec.py        encodes an array in fewer bytes: float16, int8, one bit, (index, value) pairs
    compressed.py   all-reduce that sends arrays encoded by a codec
    grid.py         the ranks as a grid; each row along an axis is a group
    cost.py         formulas for the time, messages and bytes of each collective
    select.py       chooses the fastest all-reduce for a size, by cost.py and measured times
    tensors.py      a collective also accepts a Tensor, and then returns Tensors

To find errors
    observe/        counts bytes and messages; finds which rank waits for which rank, and why

    t = minidl.comm.world()                                # one MPI process per rank, or
    minidl.comm.simulate(4, lambda t: ring.all_reduce(t, x))   # four ranks in this process

Importing this package does not import mpi4py or greenlet. `world` imports mpi4py, and `simulate`
imports greenlet.
"""

from minidl.comm import (
    all_to_all, average, chunks, codec, compressed, cost, double_tree, grid, halving_doubling,
    hierarchical, objects, ring, ring_blocks, rpc, scatter_gather, select, shared_memory, transport,
    tree,
)
from minidl.comm.call_code import CallMismatch
from minidl.comm.grid import Grid
from minidl.comm.observe.ledger import Ledger
from minidl.comm.observe.watch import Watch
from minidl.comm.transport.background import Background
from minidl.comm.transport.links import Links
from minidl.comm.transport.scheduler import Deadlock, RankFailed
from minidl.comm.transport.sim import simulate
from minidl.comm.transport.throttled import Throttled
from minidl.comm.transport.world import world
