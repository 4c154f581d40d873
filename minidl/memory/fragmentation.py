"""Fragmentation: the free memory is in many small pieces, so a large array does not fit.

    0 ──────────────────────────────────────────────────────────────────────► span
    [ weights ][ act ]......[ grad ]...[ act ][ grad ].......[ grad ].........
                      hole         hole                 hole             hole

An allocator cannot move a block that is in use. Backward frees activations, one after another.
Meanwhile it makes gradients, which are kept longer. At the end of backward the gradients are spread
over the memory of the freed activations. An array that is larger than the largest hole does not
fit, even if the sum of the holes is larger than the array.

`first_fit` repeats what a step allocated and freed (memory.Ledger.events). It puts each array at
the lowest address where the array fits. `contiguous` is the remedy: all arrays that are kept long
are allocated once, in one piece, before the step (parallel/data/flat.py).

    with memory.record(model, optimizer) as ledger:
        step()
    first_fit(ledger.events)                                        Replay(live, span, in_pieces)
    first_fit(contiguous(ledger.events, ledger.kinds))

Sources: Knuth, "The Art of Computer Programming" 1, section 2.5 (first fit); Rajbhandari et al.
2020 (arXiv 1910.02054), sections 3.2 and 6.3: training runs out of memory while 30% of it is free.
Test: tests/memory/test_fragmentation.py   Measured in: benchmarks/bench_memory.py
"""

from bisect import insort
from collections import namedtuple

from minidl.memory import ledger as memory

# live: the largest number of bytes in use at one time. span: the highest address that was ever in
# use. in_pieces: the free bytes below the address `span`, without the largest free piece. This
# number is computed after each event, and in_pieces is the largest of these numbers.
Replay = namedtuple("Replay", "live span in_pieces")


def first_fit(events):
    """Returns the Replay of an allocator that puts each buffer at the lowest address where it fits.
    events: a list of (number of a buffer, its bytes), in order. The bytes are 0 if the buffer is
    freed."""
    moments = [(0, [], 0)]  # (bytes in use, holes below the highest block, end of that block)
    for blocks in placements(events):
        holes, end = [], 0
        for start, stop, _ in blocks:
            holes.append(start - end)
            end = stop
        moments.append((end - sum(holes), holes, end))
    span = max(end for _, _, end in moments)
    in_pieces = max(span - live - max(*holes, span - end, 0) for live, holes, end in moments)
    return Replay(max(live for live, _, _ in moments), span, in_pieces)


def placements(events):
    """Yields the blocks in use after each event: a list of (start, stop, number), ordered by
    address. Each time it yields the same list object, changed in place. Copy the list to keep
    it."""
    blocks = []
    for number, n_bytes in events:
        if n_bytes:
            start = 0
            for before, after, _ in blocks:
                if before - start >= n_bytes:
                    break
                start = after
            insort(blocks, (start, start + n_bytes, number))
        else:  # the buffer is freed. If it had 0 bytes, it was never in a block
            blocks[:] = [block for block in blocks if block[2] != number]
        yield blocks


def contiguous(events, kinds, long_lived=(*memory.STATES, "communication")):
    """Returns new events for the same step. All buffers of the long-lived kinds are replaced by one
    buffer, which is allocated first and never freed. The size of this buffer is the sum of the
    peaks of these kinds. The peak of a kind is the largest number of bytes that the kind held at
    one time. kinds: kinds[number] is the kind of a buffer (memory.Ledger.kinds)."""
    held, most, sizes, others = {}, {}, {}, []
    for number, n_bytes in events:
        kind = kinds[number]
        if kind not in long_lived:
            others.append((number, n_bytes))
            continue
        if n_bytes:
            sizes[number] = n_bytes
        held[kind] = held.get(kind, 0) + (n_bytes or -sizes.pop(number, 0))
        most[kind] = max(most.get(kind, 0), held[kind])
    return [(-1, sum(most.values())), *others]
