"""Work done ahead by threads, handed over in order.

The plain form: minidl/plain/prefetch.py. Here: several threads, and a rule for how many:

    worker 0     load 0    | load 2    | load 4    | wait ...     at most n_ahead results lie there
    worker 1     load 1    | load 3    | load 5    | wait ...
    training         step 0 | step 1 | step 2 | ...

With L for loading, L_cpu of it on a core, S for a step and k workers a step takes

    max(L_io / k, L_cpu * ranks / cores, S)     instead of L + S          L_io = L - L_cpu

so by Little's law k = ceil(L / S) workers keep up, unless the cores do not: then more of them help
no more. Threads are enough where loading waits for the disk, or computes in NumPy, zlib or hashes,
which release Python's global lock; loading that holds the lock is not divided by k.

workers="auto" begins with one, measures L, L_cpu and S, and says what it has found.
Source: Little 1961.   Test: tests/data/test_prefetch.py   Tutorial: tutorials/26_input.py
"""

import math
import queue
import statistics
import threading
import time

from minidl.backend import n_cores

MEASURED = 8  # items, before "auto" decides; the first, which opens files, does not count
MOST = 32  # workers that "auto" may ask for


def prefetch(tasks, work, n_ahead=2, workers=1, say=None, ranks=1):
    """Yield (task, work(task)) of each task, in order; `workers` threads compute up to n_ahead of
    them in advance, more workers one result more than they are. The tasks are drawn one at a time.

    An exception of tasks or work is raised in its place, after all results before it. The threads
    end with the iteration, also after `break`.
    say(line): hears what workers="auto" has found; ranks: how many share this machine's cores."""
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
                raise error  # with the thread's traceback: the line in the dataset is in it
            crew.free.release()  # before the yield: the workers work while the consumer does
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
    """Little's number of workers, at most MOST; `say` hears how it was found."""
    cores = cores or n_cores()
    k = min(max(1, math.ceil(load_s / max(step_s, cpu_s * ranks / cores, 1e-9))), MOST)
    if say is not None:
        then = step_time(load_s, cpu_s, step_s, k, ranks, cores)
        say(f"an item takes {1e3 * load_s:.1f} ms to load, {1e3 * cpu_s:.1f} of them on a core; a "
            f"step takes {1e3 * step_s:.1f} ms: {k} worker{'s' * (k > 1)}, and {1e3 * then:.1f} ms "
            f"for both instead of {1e3 * (load_s + step_s):.1f}"
            + ("; the cores are the limit" if then > 1.01 * step_s else ""))
    return k


def step_time(load_s, cpu_s, step_s, workers=1, ranks=1, cores=1):
    """The formula above. One worker does its waiting and its computing one after the other."""
    return max(load_s if workers == 1 else (load_s - cpu_s) / workers, cpu_s * ranks / cores,
               step_s)


class _Crew:
    """Threads that draw tasks one after the other and put results where their order wants them."""

    def __init__(self, tasks, work, n_ahead):
        self.tasks, self.work, self.n, self.n_ahead = tasks, work, 0, n_ahead
        self.free = threading.Semaphore(n_ahead)  # places ahead of the consumer
        self.slots = queue.SimpleQueue()  # in order: where each result will be put; None: the end
        self.drawing, self.dismissed, self.times = threading.Lock(), False, []

    def hire(self, n):
        """So many workers in all."""
        while self.n < n:
            self.n += 1
            # daemon: a program that ends with an iterator still held must not wait for its threads
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
                    self.dismissed = True  # the other workers, too
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
