"""ZeRO stage 2: and only its own share of the gradients.

    backward    |-- layer 3 --|-- layer 2 --|-- layer 1 --|
    gradients   | 3           | 2           | 1           |      whole while their bucket fills,
    the wire                  |- bucket 0 --|- bucket 1 --|      reduce-scattered behind backward,
    kept                        block r       block r            then all but block r is freed

    bytes a parameter, mixed precision       2 + 2/n + 12/n, and the buckets on their way
    sent per rank and backward               (n-1)/n X for gradients; as much again in gather()

Everything else is stage 1's. The difference is when: stage 1 keeps the whole gradients until the
last backward of a step and sends once; stage 2 cannot add up what it has given away, so each
backward sends, and the shards add up. (Under no_sync() it does not send, and then holds the whole
gradients meanwhile: the choice is between bytes sent and bytes held.)

Source: Rajbhandari et al. 2020 (arXiv 1910.02054).
Test: tests/parallel/zero/test_zero.py   Before: zero1.py   Next: zero3.py   Tutorial: 10_zero.py
"""

from minidl import memory
from minidl.parallel.zero.zero1 import ShardedBucket, ShardReducer, Zero1


class FleetingBucket(ShardedBucket):
    """A bucket whose room for gradients exists from the first one's arrival to the last one's
    departure."""

    def make_room(self):
        self.flat, self.views = None, {}

    def take(self, p):
        if self.flat is None:
            super().make_room()
            memory.note(self.flat, "communication")
        super().take(p)

    def kept(self, own):
        """A copy, as the room is given back."""
        own = own.copy()
        self.make_room()
        return own


class FleetingReducer(ShardReducer):
    bucket = FleetingBucket


class Zero2(Zero1):
    """As Zero1; the gradients of a bucket are freed, but for this rank's block, as soon as they
    have been averaged, and add up in the shards over several backwards."""

    reducer_type = FleetingReducer
