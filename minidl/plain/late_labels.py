"""Late labels: a click is paired with its label, which comes hours later or never.

The label says, for example, that a purchase followed. Clicks and labels come in two streams, and
training needs pairs. A click waits for its label, but not for ever. If its window ends first, the
click gets the label 0: "no purchase is known".

    clicks    ──a────b─────c───────────────d─────────►  time     a, 1    its label came in time
    labels    ──────a──────────────────c─────────────►           b, 0    when b's window ends
                                                                 c, 0    c's label came too late
               window = 10 characters                            d       may still get one

When is a window over? The records decide this, not a clock. Both streams are in order of time. Each
stream has a next record. The earlier one of these two records is read first. So when a record of
12:00 is read, everything before 12:00 has been read in both streams, and all windows that end
before 12:00 are over. A label that comes exactly at the end of a window is in time. The watermark
is the time up to which both streams have been read. The result depends only on the records: joining
yesterday's streams again gives the same pairs.

The waiting clicks are part of the state of a training, and so are the positions in the streams
(page stream). At most the clicks of one window are waiting. With a longer window more labels are
right, but they come later.

Papers: Akidau et al., "The Dataflow Model", 2015; Ananthanarayanan et al., "Photon: Fault-tolerant
and Scalable Joining of Continuous Data Streams", 2013. This page is the plain version. The real
one, minidl/data/stream/join.py, adds: streams in partitions on several ranks, records that are out
of order by a limited time, a second sample if a label is late, a position in both logs that can be
saved, and streams that stop for a while.
"""

import heapq


def join(clicks, labels, window):
    """Yields (key, label) for each click. The label is 1 if it came in time, otherwise 0. clicks,
    labels: [(time, key)], in the order of time. window: how long a click waits for its label."""
    # If a click and a label have the same time, the click comes first, because merge compares the
    # words "click" and "label".
    both = heapq.merge([(time, "click", key) for time, key in clicks],
                       [(time, "label", key) for time, key in labels])
    waiting = {}  # {key: end of its window}. The oldest click comes first
    for now, kind, key in both:
        yield from over(waiting, now)
        if kind == "click":
            waiting[key] = now + window
        elif key in waiting:
            del waiting[key]
            yield key, 1
    yield from over(waiting, float("inf"))  # the streams have ended, so all windows end


def over(waiting, watermark):
    """Yields (key, 0) for each waiting click whose window ends before the watermark. Removes the
    click from `waiting`."""
    for key, end in list(waiting.items()):
        if end < watermark:
            del waiting[key]
            yield key, 0


if __name__ == "__main__":
    clicks = [(0, "a"), (5, "b"), (11, "c"), (26, "d")]
    labels = [(4, "a"), (22, "c"), (36, "d")]
    print(*join(clicks, labels, window=10))
