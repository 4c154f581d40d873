"""Prefetch: a thread loads the next batches while the training step computes.

Loading a batch takes L seconds, and a step takes S seconds. One after the other, they take L + S
seconds for each batch:

    load 0 | step 0 | load 1 | step 1 | load 2 | step 2

A thread does the loading. It puts every loaded batch into a queue, and training takes the batches
from there:

    thread      load 0 | load 1 | load 2 | load 3 | wait ...
    training             step 0   | step 1   | step 2   | ...         max(L, S) for a batch

The queue has room for n batches. When it is full, the thread waits. Otherwise a fast loader would
fill the memory. So at most n + 1 batches are ahead of training: n in the queue, and one that the
thread holds. The order does not change, because a queue returns the items in the order in which
they came.

Python runs one thread at a time, but a thread that waits for a disk, or computes in NumPy, lets
other threads run.

Source: Dijkstra, "Cooperating sequential processes", 1965 (a queue with a bound).
This page is the plain version. The real one, minidl/data/prefetch.py, adds: several threads, and a
rule for their number; errors of the loader, which are raised in the training loop; and threads that
end when the loop ends.
"""

import queue
import threading


def prefetch(items, n):
    """Yields the items in their order. A thread takes up to n + 1 items in advance."""
    ready = queue.Queue(n)
    end = object()  # marks the end, because no item is this object

    def work():
        for item in items:
            ready.put(item)  # waits while the queue has n items
        ready.put(end)

    threading.Thread(target=work, daemon=True).start()  # daemon: the thread ends with the program
    while (item := ready.get()) is not end:
        yield item


if __name__ == "__main__":
    import time

    loaded = []

    def load(n):
        for i in range(n):
            loaded.append(i)
            yield i

    for i in prefetch(load(7), n=2):
        time.sleep(0.03)  # a step takes 0.03 s. In this time the thread fills the queue
        print("step", i, " loaded so far:", *loaded)
