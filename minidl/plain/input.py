"""Input: samples are read, transformed and used at the same time, as on an assembly line.

A sample goes through three stages: extract (read it from the disk), transform (decode, cut, scale)
and train. They take e, t and l (for learning) seconds for each sample. If the stages run one after
another, n samples take n (e + t + l) seconds. But a disk, a processor and a GPU can work at the
same time, on different samples:

    extract      0    1    2    3
    transform         0    1    2    3
    train                  0    1    2    3

    one after another       n (e + t + l)
    overlapped          (e + t + l) + (n - 1) max(e, t, l)

So the slowest stage limits the speed. If the slowest stage is not the training, the training waits
for its input.

Each stage before the training is a thread that puts its results into a queue (see prefetch.py).
A queue has room for a few samples. If it is full, its thread waits. The samples stay in order.

Source: Murray et al., "tf.data: A Machine Learning Data Processing Framework", 2021.
This page is the plain version. The real one, minidl/data/pipeline.py, adds: any number of stages,
several threads in one stage, a shuffle, batches, a part of the samples for each rank, and a
position that can be saved.
"""

from minidl.plain.prefetch import prefetch


def samples(names, extract, transform, room=2):
    """Yields transform(extract(name)) of each name. The two stages run while the caller computes.
    room: the number of samples for which each queue has room."""
    extracted = prefetch(map(extract, names), room)
    return prefetch(map(transform, extracted), room)


def finish_times(costs, n):
    """Returns a list with the times when sample 0, 1, ..., n-1 leaves the last stage. Stage s takes
    costs[s] seconds for each sample. A queue has room for any number of samples.

    A stage begins a sample when two things are done. The stage has finished the previous sample,
    and the previous stage has finished this sample."""
    done = [0] * len(costs)  # the time when each stage finished its latest sample
    times = []
    for _ in range(n):
        ready = 0
        for stage, cost in enumerate(costs):
            done[stage] = max(ready, done[stage]) + cost
            ready = done[stage]  # from this time on the next stage can use the sample
        times.append(ready)
    return times


if __name__ == "__main__":
    files = {"a": "1 2", "b": "3 4", "c": "5 6"}  # stands for files on a disk

    def numbers(text):
        return [int(word) for word in text.split()]

    total = 0
    for sample in samples(files, files.get, numbers):
        total += sum(sample)  # stands for a step of training
        print("sample", sample, "total", total)
    print("overlapped", finish_times([2, 1, 3], n=4)[-1], " one after another", 4 * (2 + 1 + 3))
