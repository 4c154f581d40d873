"""Memory: which arrays hold how many bytes, and ways to hold fewer.

    ledger          counts every byte that training holds, by kind, now and at the peak
    saved_bytes     counts the bytes that a graph keeps for backward
    predict         computes the bytes of each kind by formulas, before training begins
    workspace       computes the memory that an op needs in addition to its inputs and results
    fragmentation   shows why an allocator may need more bytes than all arrays together
    recompute       keeps only a segment's inputs, and runs the segment again in backward
    recompute_plan  finds the segments to recompute, for a budget of bytes
    offload         moves saved arrays to the host's memory until backward

    print(minidl.memory.report(model, optimizer))
    with minidl.memory.record(model, optimizer) as ledger: ...
"""

from minidl.memory.ledger import KINDS, STATES, note, record, report, states, totals
from minidl.memory.saved_bytes import saved_by_op, saved_bytes
