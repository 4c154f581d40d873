"""How ranks send bytes to each other. The layers of a transport: docs/transports.md

    protocol.py     the methods of a transport, and its rules: start here
    sim.py          ranks as greenlets in one process, with a modelled clock
    network.py      what simulated ranks share: the ports, and the messages on their way
    lockstep.py     many simulated ranks in one array: the code of a ring runs once for all
    scheduler.py    chooses the simulated rank that runs next; the deadlock report
    links.py        alpha and beta of every pair, nodes, shared NICs, stragglers
    links_text.py   reads and writes these links as a line of text
    world.py        `minidl.comm.world()`: all MPI processes, watched, throttled, healing
    mpi.py          ranks as MPI processes
    communicators.py  reuses MPI's communicators, so a program may make any number of groups
    ulfm.py         MPI's ranks continue when one rank has died
    abort.py        if one rank fails, all ranks end
    supervised.py   what a rank tells the launcher that watches it
    throttled.py    real messages, as slow as a given network
    window.py       memory that the ranks of a node share
    background.py   one communication thread, first in first out
    staging.py      messages of device arrays: through pinned memory, or directly
    device.py       chooses how gradients on a GPU are sent: by NCCL, directly, or staged
    nccl.py         collectives by NCCL, with the names of ours
"""
