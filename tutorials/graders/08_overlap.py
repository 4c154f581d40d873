"""Grades work/08_overlap.py.   Test: tests/tutorials/test_exercises.py"""

from types import SimpleNamespace
from unittest.mock import patch

import numpy as np

import minidl
from minidl.comm import Background, Ledger, RankFailed, ring, simulate
from minidl.comm.checks import SizeMismatch
from minidl.course.grade import Wrong

SIZES = [  # (bytes of each layer, the cap)
    ([100] * 6, 200),
    ([8, 4000, 16, 400, 16, 400, 24], 416),
    ([36 << 10] * 24, 144 << 10),
    ([12], 100),
    ([40, 40, 40, 40, 400], 120),
]


def filled(module, sizes, cap):
    return [[int(layer) for layer in bucket] for bucket in module.fill(sizes, cap)]


def grade_08a(student):
    """fill puts the layers into buckets from last to first, and closes a bucket at the cap."""
    for sizes, cap in SIZES:
        buckets = student.run(filled, sizes, cap)
        _check_order(buckets, len(sizes))
        _check_cap(buckets, sizes, cap)
        yield f"{len(sizes)} layers, cap {cap:,} B: {len(buckets)} buckets, last layer first"
    yield _check_overlap(student.run(step_with_fill))


def step_with_fill(module):
    with patch.object(module.Averager, "ready", _ready):  # 08a can be right before 08b is
        return _modelled_step(module)


def _ready(averager, i):
    """Starts the full buckets, in order."""
    averager.arrived.add(i)
    for bucket in averager.buckets[len(averager.jobs) :]:
        if not averager.arrived >= set(bucket):
            return
        averager.jobs.append(averager.background.submit(averager.reduce, bucket))


def _check_order(buckets, n):
    sent = [layer for bucket in buckets for layer in bucket]
    missing = sorted(set(range(n)) - set(sent))
    if missing:
        raise Wrong(
            f"{n} layers: layer {missing[0]} is in no bucket, so its gradient is never averaged. "
            "Do you keep the last bucket, even if it is smaller?"
        )
    if sent == list(range(n)) and n > 1:
        raise Wrong(
            f"{n} layers: the first bucket begins with layer 0. But the gradient of layer 0 comes "
            "last: nothing can be sent before backward ends"
        )
    if sent != list(range(n))[::-1]:
        raise Wrong(
            f"{n} layers: gradients come in the order {n - 1}, {n - 2}, ..., 0, but the buckets "
            f"have {', '.join(map(str, sent[:6]))}, ..."
        )


def _check_cap(buckets, sizes, cap):
    for place, bucket in enumerate(buckets):
        n_bytes = sum(sizes[i] for i in bucket)
        if not bucket:
            raise Wrong(f"bucket {place} of {len(buckets)} is empty")
        if n_bytes < cap and place < len(buckets) - 1:
            raise Wrong(
                f"bucket {place} was closed with {n_bytes:,} bytes, before it held the cap of "
                f"{cap:,}: layers {bucket}"
            )
        if n_bytes - sizes[bucket[-1]] >= cap:
            raise Wrong(
                f"bucket {place} holds {n_bytes:,} bytes. It was full before its last layer came: "
                f"the cap is {cap:,}, and a bucket that holds the cap or more is full"
            )


def grade_08b(student):
    """ready sends each bucket when it is full, during backward, in one order on all ranks."""
    for p in (2, 3, 4):
        _check_means(student, p, [list(range(8))[::-1]] * p)
        yield f"{p} ranks, last layer first: means, messages, bytes"
    # In a network with branches, the order of the gradients can be different on each rank.
    orders = [[7, 6, 5, 4, 3, 2, 1, 0], [5, 4, 3, 7, 2, 1, 0, 6], [0, 1, 2, 3, 4, 5, 6, 7]]
    _check_means(student, 3, orders[1:2] * 3)
    _check_means(student, 3, orders)
    yield "3 ranks on which gradients arrive in different orders: means, messages, bytes"
    yield _check_overlap(student.run(step_with_ready))


def step_with_ready(module):
    with patch.object(module, "fill", _fill):  # 08b can be right before 08a is
        return _modelled_step(module)


def _fill(sizes, cap):
    """Returns buckets, last layer first. A bucket closes at the cap."""
    buckets, held = [[]], 0
    for layer in range(len(sizes) - 1, -1, -1):
        if held >= cap:
            buckets.append([])
            held = 0
        buckets[-1].append(layer)
        held += sizes[layer]
    return buckets


class _Checked(Background):
    """Refuses a bucket if some of its gradients have not arrived."""

    def submit(self, fn, *args):
        averager = getattr(fn, "__self__", None)
        for bucket in args:
            missing = sorted(set(bucket) - averager.arrived)
            if missing:
                raise Wrong(
                    f"rank {self.transport.rank}: the bucket of layers {bucket} was started when "
                    f"the gradient of layer {missing[-1]} had not arrived yet")
        return super().submit(fn, *args)


N_ELEMS = [12, 12, 7, 24, 1, 5, 36, 11]  # elements of each layer; p does not divide all of these
CAP = 8 * 24


def averaged(module, p, orders):
    """Returns for each rank (gradients, messages sent, bytes sent, buckets in the order in which
    they were started)."""
    def body(t):
        ledger = Ledger(t)
        layers = [SimpleNamespace(grad=minidl.Tensor(np.zeros(n))) for n in N_ELEMS]
        averager = module.Averager(ledger, layers, CAP)
        for i in orders[t.rank]:
            t.compute(1e-3)
            layers[i].grad[:] = 16.0**t.rank * (i + 1) * np.arange(1, N_ELEMS[i] + 1)
            averager.ready(int(i))
        averager.finish()
        started = [bucket for bucket, _, _ in averager.spans]
        return [la.grad.array for la in layers], ledger.messages_sent, ledger.bytes_sent, started

    with patch.object(module, "fill", _fill), patch.object(module, "Background", _Checked):
        try:
            return simulate(p, body)
        except RankFailed as failed:
            if isinstance(failed.__cause__, SizeMismatch):
                raise Wrong(f"{failed.__cause__}\nThe ranks worked on different buckets. Does "
                            "every rank start them in the order of self.buckets, whatever gradient "
                            "arrives first?") from None
            raise


def _check_means(student, p, orders):
    """Checks the mean gradients, the messages and the bytes. Rank r has the gradients 16^r (layer +
    1) (1, 2, 3, ...), so each rank has its own hexadecimal digit."""
    base = sum(16.0**r for r in range(p)) / p
    buckets = _fill([8 * n for n in N_ELEMS], CAP)
    in_buckets = [sum(N_ELEMS[i] for i in bucket) for bucket in buckets]
    results = student.run(averaged, p, orders)
    for rank, (grads, messages, n_bytes, started) in enumerate(results):
        if messages != len(buckets) * 2 * (p - 1):
            raise Wrong(f"rank {rank} of {p} started {len(started)} all-reduces, {started}, and "
                        f"sent {messages:,} messages. {len(buckets)} buckets need {len(buckets)} "
                        f"all-reduces of {2 * (p - 1)} messages. Do you start every bucket once, "
                        "also if one gradient completes two of them?")
        for i, got in enumerate(grads):
            wanted = base * (i + 1) * np.arange(1, N_ELEMS[i] + 1)
            if not np.allclose(got, wanted, rtol=1e-12):  # p roundings of 1e-16
                raise Wrong(f"rank {rank} of {p}: the gradient of layer {i} is not the mean over "
                            f"the ranks. The buckets are {buckets}, this rank started {started}. "
                            "Does every rank start each bucket once, in the same order, whatever "
                            "gradient arrives first?")
        formula = sum(ring.bytes_sent(n, 8, p, rank) for n in in_buckets)
        if n_bytes != formula:
            raise Wrong(f"rank {rank} of {p} sent {n_bytes:,} bytes; the formula says {formula:,}")


LAYERS, LAYER_US = 24, 70


def _modelled_step(module):
    """Runs 24 layers in 6 buckets on 4 ranks. Returns (seconds, spans of the all-reduces)."""
    args = SimpleNamespace(layers=LAYERS, layer_kib=36, layer_us=LAYER_US)
    step_s, _, spans = simulate(4, module.modelled_step, args, 6)[0]
    return step_s, spans


def _check_overlap(step):
    """Checks the overlap. Returns a line for the student."""
    step_s, spans = step
    if not spans:
        raise Wrong("no all-reduce was started in a whole step")
    first, backward_s = spans[0][0], LAYERS * LAYER_US * 1e-6
    if first[0] != LAYERS - 1:
        raise Wrong(f"the first all-reduce has the gradient of layer {first[0]}, but the gradient "
                    f"of layer {LAYERS - 1} arrived long before")
    comm_s = sum(end - start for _, start, end in spans)
    share = (step_s - backward_s) / comm_s
    if share > 0.2:
        raise Wrong(f"{share:.0%} of the all-reduces' time came after backward. At most 20% is "
                    f"allowed. The first all-reduce started when {spans[0][1] / backward_s:.0%} of "
                    "backward was done. Does your code wait for all-reduces before backward "
                    "ends?")
    return f"modelled: {share:.0%} of the all-reduces' time is exposed; layer {first[0]} goes first"


# {exercise: {name of the mistake: (the code of the region, words that its message must have)}}
WRONG = {
    "08a": {
        "first layer first": (
            {"reversed(range(len(sizes)))": "range(len(sizes))"},
            "begins with layer 0",
        ),
        "one bucket for all": (
            """
return [list(reversed(range(len(sizes))))]
""",
            "full before its last layer",
        ),
        "a bucket for every layer": (
            """
return [[layer] for layer in reversed(range(len(sizes)))]
""",
            "before it held the cap",
        ),
        "loses the last bucket": (
            {"buckets + [bucket] if bucket else buckets": "buckets"},
            "is in no bucket",
        ),
        "closes before the cap is passed": (
            """
buckets, bucket = [], []
for layer in reversed(range(len(sizes))):
    if bucket and sum(sizes[i] for i in bucket) + sizes[layer] > cap:
        buckets.append(bucket)
        bucket = []
    bucket.append(layer)
return buckets + [bucket]
""",
            "before it held the cap",
        ),
        "turns the buckets round, not the layers": (
            {"reversed(range(len(sizes)))": "range(len(sizes))",
             "return buckets + [bucket] if bucket else buckets":
              "return (buckets + [bucket] if bucket else buckets)[::-1]"},
            "gradients come in the order",
        ),
    },
    "08b": {
        "waits for each all-reduce": (
            {"    self.jobs.append(self.background.submit(self.reduce, bucket))\n":
              "    self.jobs.append(self.background.submit(self.reduce, bucket))\n"
              "    self.jobs[-1].wait()\n"},
            "before backward ends",
        ),
        "starts when all gradients are there": (
            """
if len(self.arrived) == len(self.layers):
    for bucket in self.buckets:
        self.jobs.append(self.background.submit(self.reduce, bucket))
""",
            "of backward was done",
        ),
        "starts a bucket at its first gradient": (
            """
if len(self.jobs) < len(self.buckets) and i in self.buckets[len(self.jobs)]:
    self.jobs.append(self.background.submit(self.reduce, self.buckets[len(self.jobs)]))
""",
            "had not arrived yet",
        ),
        "starts whichever bucket is full": (
            """
for bucket in self.buckets:
    if i in bucket and self.arrived.issuperset(bucket):
        self.jobs.append(self.background.submit(self.reduce, bucket))
""",
            "same",
        ),
        "one bucket for one gradient": (
            """
if len(self.jobs) < len(self.buckets):
    bucket = self.buckets[len(self.jobs)]
    if self.arrived.issuperset(bucket):
        self.jobs.append(self.background.submit(self.reduce, bucket))
""",
            "completes two of them",
        ),
        "starts full buckets again": (
            """
for bucket in self.buckets:
    if self.arrived.issuperset(bucket):
        self.jobs.append(self.background.submit(self.reduce, bucket))
""",
            "start every bucket once",
        ),
    },
}
