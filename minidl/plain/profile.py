"""Profile: where the time of a step goes, and whether it could be shorter.

A span has a name, a begin and an end. A span may contain other spans:

    0         2         4         6         8        10       own time
    ├─────────────── step ─────────────────────────────┤      step 10 - 5 - 3 = 2
         ├─────── forward ────────┤├── backward ──┤           forward 5 - 2 = 3, backward 3
              ├─ matmul ─┤                                    matmul 2

Every moment counts once, for the innermost span around it. So the own time of a span is its length
minus the lengths of its children. The own times of all spans add up to the whole time: nothing is
missing, nothing is counted twice.

Could a time be shorter? An operation does F additions and multiplications, and moves B bytes to and
from the memory. In a second a machine does at most P additions and multiplications, and moves at
most W bytes. So the operation takes at least

    time = max(F / P, B / W)              the roofline

F / B is the intensity: additions and multiplications for each byte. If F / B is below P / W, the
memory decides the time. If it is above, the processor decides the time. A product of two n x n
matrices does 2 n^3 additions and multiplications on 3 n^2 numbers, 2n/3 for each number: the
processor limits a large product. A sum of two arrays does one addition for three numbers: the
memory limits it.

Paper: Williams, Waterman & Patterson, "Roofline: An Insightful Visual Performance Model", 2009.
This page is the plain version. The real one, minidl/profile/summary.py and minidl/profile/flops.py,
adds: spans of every operation without a change of the model, spans of several ranks and of a GPU,
the times that ranks waited for other ranks, and peaks that are measured on this machine.
"""

import contextlib
import time


@contextlib.contextmanager
def span(spans, name, clock=time.perf_counter):
    """Measures a block of code: `with span(spans, name):` adds (name, begin, end) to spans."""
    begin = clock()
    yield
    spans.append((name, begin, clock()))


def own_times(spans):
    """Returns {name: the own time of the spans with this name, in seconds}."""
    own = {}
    open_spans = []  # (name, end) of the spans around the current one
    # The spans are sorted by their begin. If two spans begin together, the longer one is around the
    # shorter one, so the longer one comes first.
    outer_first = sorted(spans, key=lambda span: (span[1], -span[2]))
    for name, begin, end in outer_first:
        while open_spans and open_spans[-1][1] <= begin:
            open_spans.pop()  # the removed span ended before the current span began
        if open_spans:
            own[open_spans[-1][0]] -= end - begin  # a child's time is not its parent's own time
        own[name] = own.get(name, 0) + end - begin
        open_spans.append((name, end))
    return own


def matmul_work(m, k, n, bytes_each=4):
    """Returns (operations, bytes) of a product (m, k) @ (k, n). It reads two arrays and writes one
    array."""
    return 2 * m * k * n, (m * k + k * n + m * n) * bytes_each


def roofline(operations, n_bytes, peak, bandwidth):
    """Returns the least time, in seconds, and what limits it: "processor" or "memory". peak: the
    operations that the machine does in a second. bandwidth: the bytes that it moves in a second."""
    compute, memory = operations / peak, n_bytes / bandwidth
    return max(compute, memory), "processor" if compute > memory else "memory"


if __name__ == "__main__":
    ticks = iter([0, 1, 2, 4, 6, 6, 9, 10])  # the times that the clock will return
    spans, clock = [], lambda: next(ticks)
    with span(spans, "step", clock):
        with span(spans, "forward", clock):
            with span(spans, "matmul", clock):
                pass
        with span(spans, "backward", clock):
            pass
    times = own_times(spans)
    print(times, "sum", sum(times.values()))
    for n in (10, 1000):  # the machine does 100 operations and moves 10 bytes in a unit of time
        print(n, "x", n, "product:", *roofline(*matmul_work(n, n, n), peak=100, bandwidth=10))
