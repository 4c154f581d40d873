"""Late labels: a click is paired with its label, which comes hours later or never.

The label says, for example, that a purchase followed. Clicks and labels come in two streams, and
training wants pairs. A click waits for its label, but not for ever: when its window ends, it is
given out with the label 0, "no purchase as far as we know".

    clicks    ──a────b─────c───────────────d─────────►  time     a, 1    its label came in time
    labels    ──────a──────────────────c─────────────►           b, 0    when b's window ends
                                                                 c, 0    c's label came too late
               window = 10 signs                                 d       may still get one

When is a window over? No clock is asked. Both streams are in order of time, and of the two next
records the earlier one is read. So a record of 12:00 says that everything before 12:00 has been
read, in both. So all windows that end before 12:00 are over; a label at the very end is in time.
This moving time is the watermark. The result depends on the records alone: to join yesterday's
streams again gives the same pairs.

The clicks that wait are part of the state of a training, as are the places where the streams were
left (page stream). They are at most the clicks of one window. A long window gives truer labels,
later.

Papers: Akidau et al., "The Dataflow Model", 2015; Ananthanarayanan et al., "Photon: Fault-tolerant
and Scalable Joining of Continuous Data Streams", 2013. The real one, minidl/data/stream/join.py,
adds: streams in partitions over ranks, records that are out of order by a bounded time, a second
sample where a label is late, a place in both logs that can be saved, and streams that stand still.
"""

import heapq


def join(clicks, labels, window):
    """Yields (key, 1 or 0) of each click. clicks, labels: [(time, key)], in the order of time."""
    # at equal times "click" comes before "label", as in the alphabet
    both = heapq.merge([(time, "click", key) for time, key in clicks],
                       [(time, "label", key) for time, key in labels])
    waiting = {}  # key: when its window ends; the oldest first, as a dict keeps its order
    for now, kind, key in both:
        yield from over(waiting, now)
        if kind == "click":
            waiting[key] = now + window
        elif key in waiting:
            del waiting[key]
            yield key, 1
    yield from over(waiting, float("inf"))  # the streams end


def over(waiting, watermark):
    """Gives out the clicks whose windows end before the watermark."""
    for key, end in list(waiting.items()):
        if end < watermark:
            del waiting[key]
            yield key, 0


if __name__ == "__main__":
    clicks = [(0, "a"), (5, "b"), (11, "c"), (26, "d")]
    labels = [(4, "a"), (22, "c"), (36, "d")]
    print(*join(clicks, labels, window=10))
