"""How ranks send bytes to each other. What wraps what: docs/transports.md

    protocol.py     what every algorithm may ask of a transport, and the rules: start here
    sim.py          ranks as greenlets in one process, with a modelled clock
    network.py      what simulated ranks share: messages on their way, ports
    lockstep.py     many simulated ranks in one array: a ring's text, run once for all
    scheduler.py    which simulated rank runs next; the deadlock report
    links.py        alpha and beta of every pair, nodes, shared NICs, stragglers
    links_text.py   the same as a line of text
    world.py        `minidl.comm.world()`: all MPI processes, watched, throttled, healing
    mpi.py          ranks as MPI processes
    communicators.py  MPI's communicators, used again: groups without end
    ulfm.py         MPI's ranks go on without one that has died
    abort.py        one rank that fails ends all
    supervised.py   what a rank tells the launcher that watches it
    throttled.py    MPI made as slow as a given network
    window.py       memory that the ranks of a node share
    background.py   one communication thread, first in first out
    staging.py      device arrays: through pinned memory, or as they are
    device.py       which way gradients on a GPU go: NCCL, directly, staged
    nccl.py         NCCL behind the same calls
"""
