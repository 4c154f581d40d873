"""How ranks send bytes to each other. The layers of a transport: docs/transports.md

    protocol.py     the methods of a transport, and its rules: start here
    sim.py          ranks as greenlets in one process, with a modelled clock
    network.py      what simulated ranks share: the ports, and the messages on their way
    lockstep.py     many simulated ranks in one array: a ring's code runs once for all ranks
    scheduler.py    chooses the simulated rank that runs next; reports a deadlock
    links.py        a network: alpha and beta of every pair of ranks, nodes, shared NICs, stragglers
    links_text.py   reads and writes a network of links as a line of text
    world.py        `minidl.comm.world()`: the transport of all MPI processes
    mpi.py          ranks as MPI processes
    communicators.py  reuses MPI's communicators, so a program may make any number of groups
    ulfm.py         MPI's ranks continue when one rank has died
    abort.py        if one rank fails, all ranks end
    supervised.py   the messages of a rank to its launcher, which watches the rank
    throttled.py    makes real messages as slow as a given network
    window.py       memory that the ranks of a node share
    background.py   one thread runs collectives in the background, in the order of the calls
    staging.py      messages of device arrays: through pinned memory, or directly
    device.py       chooses how gradients on a GPU are sent: by NCCL, directly, or staged
    nccl.py         NCCL's collectives, with the names of minidl's collectives
"""
