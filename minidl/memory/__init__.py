"""Memory: which arrays hold how many bytes, and ways to hold fewer.

    ledger          every byte that training holds, by kind, now and at the peak
    saved_bytes     the bytes that a graph keeps for backward
    predict         the same figures by formula, before anything runs
    workspace       memory that an op needs in addition to its inputs and results
    fragmentation   why an allocator may need more bytes than all arrays together
    recompute       keep a segment's inputs, run it again in backward
    recompute_plan  which segments to recompute, under a budget of bytes
    offload         move saved arrays to the host's memory until backward

    print(minidl.memory.report(model, optimizer))
    with minidl.memory.record(model, optimizer) as ledger: ...
"""

from minidl.memory.ledger import KINDS, STATES, note, record, report, states, totals
from minidl.memory.saved_bytes import saved_by_op, saved_bytes
