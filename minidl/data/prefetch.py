"""Threads load items before they are needed. The items come in order.

The plain form: minidl/plain/prefetch.py. This file adds several threads, and a rule for their
number.

    worker 0     load 0    | load 2    | load 4    | wait ...     at most n_ahead results wait
    worker 1     load 1    | load 3    | load 5    | wait ...
    training         step 0 | step 1 | step 2 | ...

Loading an item takes L seconds: L_cpu seconds of work on a core, and L_io = L - L_cpu seconds of
waiting. Training on the item takes S seconds. With k workers one step takes

    max(L_io / k, L_cpu * ranks / cores, S)     instead of L + S

So by Little's law k = ceil(L / S) workers are enough. If the cores are the limit, more workers do
not help. Threads are enough if loading waits for the disk, or computes in NumPy, zlib or hashes.
All of these release Python's global interpreter lock (GIL). If loading holds the GIL, k threads are
not faster than one thread.

workers="auto" begins with one thread. It measures L, L_cpu and S. Then it chooses k and reports k.
Source: Little 1961.   Test: tests/data/test_prefetch.py   Tutorial: tutorials/26_input.py
"""

import math
import queue
import statistics
import threading
import time

from minidl.backend import n_cores

MEASURED = 8  # "auto" decides after this many items. The first item opens files and does not count
MOST = 32  # the largest number of workers that "auto" chooses


def prefetch(tasks, work, n_ahead=2, workers=1, say=None, ranks=1):
    """Yields (task, work(task)) for each task, in order.

    tasks:    an iterable. One thread at a time takes the next task.
    n_ahead:  how many results the threads compute in advance. With 0 there are no threads. If
              k > 1 threads work, and n_ahead is smaller than k + 1, they compute k + 1 results in
              advance.
    workers:  how many threads, or "auto".
    say:      a function. With workers="auto" it is called with a line of text, which tells the
              number of threads and the reason for this number.
    ranks:    how many ranks share this machine's cores.

    An exception in tasks or work is raised after all earlier results.
    The threads end when the iteration ends, also after `break`."""
    if not n_ahead:
        yield from ((task, work(task)) for task in tasks)
        return
    crew = _Crew(iter(tasks), work, n_ahead)
    crew.hire(1 if workers == "auto" else workers)
    steps, measuring = [], workers == "auto"
    try:
        while (slot := crew.slots.get()) is not None:
            task, result, error = slot.get()
            if error is not None:
                raise error  # the traceback of `error` shows the line in the dataset
            crew.free.release()  # called before yield, so workers load while the caller computes
            if not measuring:
                yield task, result
                continue
            start = time.perf_counter()
            yield task, result
            steps.append(time.perf_counter() - start)
            if len(steps) > MEASURED:
                measuring = False
                load_s, cpu_s = (statistics.median(each) for each in
                                 zip(*crew.times[1:], strict=True))
                crew.hire(workers_for(load_s, cpu_s, statistics.median(steps[1:]), ranks, say))
    finally:
        crew.dismissed = True
        for _ in range(crew.n):
            crew.free.release()


def workers_for(load_s, cpu_s, step_s, ranks=1, say=None, cores=None):
    """Returns the number of workers by Little's law, at most MOST. Calls say(line) with a text that
    shows the times and the result. load_s, cpu_s, step_s: L, L_cpu and S, as defined at the top of
    this file. cores: the default is the number of cores of this machine."""
    cores = cores or n_cores()
    k = min(max(1, math.ceil(load_s / max(step_s, cpu_s * ranks / cores, 1e-9))), MOST)
    if say is not None:
        then = step_time(load_s, cpu_s, step_s, k, ranks, cores)
        say(f"loading an item takes {1e3 * load_s:.1f} ms, {1e3 * cpu_s:.1f} ms of it on a core. A "
            f"step takes {1e3 * step_s:.1f} ms. With {k} worker{'s' * (k > 1)}, loading and step "
            f"take {1e3 * then:.1f} ms together, instead of {1e3 * (load_s + step_s):.1f} ms"
            + (". The cores are the limit" if then > 1.01 * step_s else ""))
    return k


def step_time(load_s, cpu_s, step_s, workers=1, ranks=1, cores=1):
    """Returns the seconds of a step, by the formula at the top of this file. A single worker cannot
    wait and compute at the same time, so it needs load_s for each item."""
    return max(load_s if workers == 1 else (load_s - cpu_s) / workers, cpu_s * ranks / cores,
               step_s)


class _Crew:
    """Threads that take tasks one at a time, and keep the results in the order of the tasks."""

    def __init__(self, tasks, work, n_ahead):
        self.tasks, self.work, self.n, self.n_ahead = tasks, work, 0, n_ahead
        self.free = threading.Semaphore(n_ahead)  # counts the free places for results
        self.slots = queue.SimpleQueue()  # one queue for each result, in order; None at the end
        self.drawing, self.dismissed, self.times = threading.Lock(), False, []

    def hire(self, n):
        """Starts threads until there are n threads. If n > 1, there are then at least n + 1 places
        for results."""
        while self.n < n:
            self.n += 1
            # Python does not wait for a daemon thread if the program ends in the middle of a pass.
            threading.Thread(target=self._run, name="minidl-loader", daemon=True).start()
        for _ in range(n + 1 - self.n_ahead if n > 1 else 0):
            self.n_ahead += 1
            self.free.release()

    def _run(self):
        while True:
            self.free.acquire()
            with self.drawing:
                if self.dismissed:
                    return
                slot = queue.SimpleQueue()
                try:
                    task = next(self.tasks)
                except BaseException as error:
                    self.dismissed = True  # ends all workers
                    if not isinstance(error, StopIteration):
                        slot.put((None, None, error))
                        self.slots.put(slot)
                    self.slots.put(None)
                    for _ in range(self.n):
                        self.free.release()
                    return
                self.slots.put(slot)
            start, start_cpu = time.perf_counter(), time.thread_time()
            try:
                slot.put((task, self.work(task), None))
            except BaseException as error:
                slot.put((task, None, error))
            self.times.append((time.perf_counter() - start, time.thread_time() - start_cpu))
            if len(self.times) > 2 * MEASURED:
                del self.times[0]
