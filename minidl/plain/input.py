"""Input: the next samples are read and prepared while the training computes with these.

A sample goes through three stages: extract (read it from the disk), transform (decode, cut, scale),
load (give it to the training step). One after another, n samples take n times the sum. But a disk,
a processor and a GPU can work at the same time, on different samples:

    extract      0    1    2    3
    transform         0    1    2    3              a factory line: with equal stages the time
    train                  0    1    2    3         of one stage for each sample

    one after another       n (e + t + l)
    overlapped          (e + t + l) + (n - 1) max(e, t, l)

So the slowest stage alone decides. Where it is not the training, the training waits for its input.

Every stage is a thread, and between two of them there is a queue with room for a few samples. A
thread that finds its queue full waits: so a fast stage does not fill the memory. The queue keeps
the order, so the training sees the samples in the order in which they were read.

Source: Murray et al., "tf.data: A Machine Learning Data Processing Framework", 2021.
The real one, minidl/data/pipeline.py and minidl/data/prefetch.py, adds: several threads in one
stage whose results stay in order, a number of threads that is found by measuring, batches, errors
of a stage, an end of the threads when the loop is left early, and a position that can be saved.
"""

import queue
import threading

END = object()


def ahead(items, room):
    """The same items in the same order. A thread takes them, and has up to `room` of them ready."""
    ready = queue.Queue(room)

    def fill():
        for item in items:
            ready.put(item)  # waits while the queue is full
        ready.put(END)

    threading.Thread(target=fill, daemon=True).start()
    while (item := ready.get()) is not END:  # waits while the queue is empty
        yield item


def samples(names, extract, transform, room=2):
    """transform(extract(name)) of each name; both stages run while the caller computes."""
    extracted = ahead(map(extract, names), room)
    return ahead(map(transform, extracted), room)


def finish_times(costs, n):
    """When sample 0, 1, ... leaves the last stage, if stage s takes costs[s] for each sample.

    A stage begins a sample when it is done with the one before, and the stage before has it."""
    done = [0] * len(costs)  # when each stage is done with its last sample
    times = []
    for _ in range(n):
        ready = 0
        for stage, cost in enumerate(costs):
            ready = done[stage] = max(ready, done[stage]) + cost
        times.append(ready)
    return times


if __name__ == "__main__":
    files = {"a": "1 2", "b": "3 4", "c": "5 6"}  # as if they were on a disk

    def numbers(text):
        return [int(word) for word in text.split()]

    total = 0
    for sample in samples(files, files.get, numbers):
        total += sum(sample)  # the training
        print("sample", sample, "total", total)
    print("finished at", finish_times([2, 1, 3], n=4), "and not at", 4 * (2 + 1 + 3))
