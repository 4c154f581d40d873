"""Buckets: send gradients while backward still computes the others.

The plain form: minidl/plain/buckets.py. Here: a background thread runs an all-reduce of each bucket
while backward goes on; hooks of the engine fill the buckets; and a bucket is one flat array, of
which the gradients are views. All ranks must send the buckets in one order, that of the gradients'
arrival. It is not known before the first backward, which uses the reversed order of definition;
then rank 0's is broadcast and the buckets are rebuilt, once. A parameter that no rank used, and
ranks that used others, are known from a header before the first bucket travels (header.py).

Sources: Li et al. 2020 (arXiv 2006.15704), section 3.2; the cap rule is PyTorch's reducer's.
Test: tests/parallel/data/test_bucket.py   Tutorial: tutorials/08_overlap.py
"""

from collections import deque

import numpy as np

from minidl import backend
from minidl.backward import gradient_or_zeros
from minidl.comm import ring, tree
from minidl.comm.labels import about
from minidl.comm.transport import device
from minidl.comm.transport.background import Background
from minidl.cuda.host_memory import SideStream, computed, join
from minidl.parallel.data import flat, header


def default_all_reduce(params):
    """The ring; for a model on a GPU the one that takes device arrays."""
    return ring.all_reduce if params[0]._xp is np else device.all_reduce


def weighted_mean(t, buffer, n_samples, n_total, all_reduce):
    """buffer = sum over ranks of n_r * buffer_r / n_total, in place; n_total = sum of n_r.

    Written as a weight (exactly 1.0 where all ranks have as many samples), a sum, and a division
    after it, so that equal batches give the bits of a plain mean."""
    weight(buffer, n_samples, n_total, t.size)
    total = all_reduce(t, buffer)
    xp = backend.xp_of([buffer])
    if total is not None and buffer.size and not xp.may_share_memory(total, buffer):
        raise ValueError(
            f"rank {t.rank}: wanted an all_reduce that sums in place, as minidl.comm's do; got one "
            "that returns a new array. Wrap it: def f(t, x): x[...] = all_reduce(t, x)")
    buffer /= t.size


def weight(buffer, n_samples, n_total, n):
    """buffer *= n_r * n / n_total in place: the weight of a rank's samples among n ranks', 1 on
    average."""
    if n_samples == 0:
        buffer[...] = 0  # the mean over no samples is nan, and 0 * nan is nan
    elif n_samples * n != n_total:
        buffer *= buffer.dtype.type(n_samples * n / n_total)


def assign(n_bytes, cap, first_cap=None):
    """Cut a list of sizes into runs: [[0, 1], [2], ...] (indices). A run is closed as soon as it
    holds `cap` bytes or more (the first: `first_cap`), so it may overshoot by one parameter."""
    runs = []
    run, size = [], 0
    limit = cap if first_cap is None else first_cap
    for i, n in enumerate(n_bytes):
        run.append(i)
        size += n
        if size >= limit:
            runs.append(run)
            run, size = [], 0
            limit = cap
    if run:
        runs.append(run)
    return runs


def cut(params, cap, first_cap=None, number=None):
    """The parameters of each bucket: `assign` within a dtype and, of ZeRO, a parameter group, whose
    `number` is {parameter: int}."""
    kinds = {}
    for p in params:
        group = None if number is None else number[p]
        kinds.setdefault((p.dtype, group), []).append(p)

    buckets = []
    for kind in kinds.values():
        n_bytes = [p.nbytes for p in kind]
        first = None if buckets else first_cap  # of all kinds, the first bucket alone
        for run in assign(n_bytes, cap, first):
            buckets.append([kind[i] for i in run])
    return buckets


class Bucket:
    """Parameters whose gradients travel together: one flat array of their library, in the
    accumulation dtype (fp16 gradients sum in fp32), and a view of it for each parameter."""

    def __init__(self, params, all_reduce):
        self.params = params
        self.all_reduce = all_reduce
        xp = params[0]._xp
        dtype = backend.accumulate_dtype(params[0].dtype)
        self.flat = xp.zeros(sum(p.numel() for p in params), dtype)
        views = flat.views(self.flat, [p.shape for p in params])
        self.views = dict(zip(params, views))
        self.n_missing = 0  # gradients still to come in this backward

    def take(self, p):
        """A gradient is complete. Nothing to do: `fill` copies them all, on a GPU in one launch."""

    def fill(self, unused):
        """All have come but for the `unused`: copy them in, and zeros where there is none."""
        if all(backend.array_of(p.grad) is self.views[p] for p in self.params):  # added up in place
            return
        flat.fill(self.flat, [gradient_or_zeros(p) for p in self.params])

    def reduce(self, t, n_samples, n_total):
        """In the background: the sums become means over n_total samples, n_samples of them here.
        Returns arrays that it has let go of, and that a GPU may still be reading."""
        weighted_mean(t, self.flat, n_samples, n_total, self.all_reduce)

    def give(self, p):
        """p.grad becomes the view, without a copy, unless the dtype differs."""
        view = self.views[p]
        p.grad = view if view.dtype == p.dtype else view.astype(p.dtype)

    def gives(self, p):
        """Whether p gets a gradient though no rank used it (compress.py); the same on all ranks."""
        return False

    def bytes_sent(self, t, n_backwards):
        """Bytes that this rank sends in so many backwards, around a ring."""
        return n_backwards * ring.bytes_sent(self.flat.size, self.flat.itemsize, t.size, t.rank)


class Done:
    """A job that was run at once."""

    def wait(self):
        pass


class Joined:
    """A job on a side stream, which works on x: after wait() the compute stream waits for it."""

    def __init__(self, job, x):
        self.job, self.x = job, x

    def wait(self):
        join(self.x, self.job.wait())


class Reducer:
    """Turns `on_grad_ready` of each parameter into a reduction of each bucket, in a fixed order.

    make_buckets(order)  buckets (as Bucket) for gradients that are expected in this order
    adapt                whether to make them anew, once, in the order in which gradients came
    on_full(bucket)      called when the bucket's last gradient is complete on this rank
    on_end()             called when a backward that sends is over

    `expect` announces a backward. When the last gradient of one that sends has come, the means are
    waited for and handed out; so `loss.backward()` returns with p.grad complete."""

    def __init__(self, t, params, all_reduce, make_buckets, adapt=True, overlap=True):
        self.background = Background(t)
        self.t = self.background.transport  # messages of its own, beside the caller's
        self.overlap = overlap
        self.params = params
        # the header is NumPy's, wherever the gradients are
        self.all_reduce_header = all_reduce if params[0]._xp is np else ring.all_reduce
        self.side = SideStream()
        self.held = deque()  # (event, arrays that a GPU reads until then)
        self.make_buckets = make_buckets
        self.rebuilt = not adapt
        self.averages = adapt  # else a ZeRO stage's, which shards
        self.on_full = lambda bucket: None
        self.on_end = lambda: None
        self.observer = None  # is shown buckets before they are sent, and after (noise_scale.py)
        self.jobs = []
        self.arrived = []  # parameters in order of arrival in this backward
        self.n_missing = 0
        self.armed = False  # whether the coming backward is one that sends
        self.unsent = set()  # parameters whose gradients hold passes that did not send
        self.n_unsent = 0  # the samples of those passes
        self.n_coming = None  # the samples of the latest forward, until its backward begins
        self.build(list(reversed(params)))
        self.remove_hooks = [p.on_grad_ready(self) for p in params]

    def build(self, order):
        """Buckets of parameters, whose gradients are expected in this order."""
        self.buckets = self.make_buckets(order)
        self.bucket_of = {p: b for b in self.buckets for p in b.params}

    def expect(self, used, n_samples, sends=True):
        """A backward is to come that reaches the leaves `used`. n_samples: of its forward. sends:
        False under no_sync.

        What is sent is what is new since the last time: the gradients of this backward and of those
        that did not send, weighted by the samples of all of them. A forward that no backward
        follows counts nothing."""
        used = {p for p in self.params if p in used}
        if self.unsent and all(p.grad is None for p in self.unsent):  # they were thrown away
            self.forget()
        if sends:
            n_samples += self.n_unsent
            self.check_expected(used, n_samples)
        for bucket in self.buckets:
            bucket.n_missing = sum(p in used for p in bucket.params)
        self.armed = sends
        if sends:
            self.used = used
            self.n_missing = len(used)
            self.n_samples = n_samples
            self.header = header.announce(n_samples, self.params, used | self.unsent)
        else:
            self.n_coming = n_samples

    def forget(self):
        """What has not been sent stays here: it is no part of what is sent next."""
        self.unsent.clear()
        self.n_unsent = 0

    def cleared(self, p):
        """zero_grad has been called: p's gradient holds nothing of the passes that did not send."""
        self.unsent.discard(p)
        if not self.unsent:
            self.forget()

    def check_expected(self, used, n_samples):
        """Raise an error if the backward to come would not send what the other ranks wait for, or
        would send it with a wrong weight."""
        if not used:
            raise RuntimeError(
                f"rank {self.t.rank}: this forward used none of the model's {len(self.params)} "
                "parameters, so its backward would send nothing while the other ranks wait")
        if self.arrived:  # backward is not over
            raise RuntimeError(
                f"rank {self.t.rank}: forward again before backward had reached all parameters of "
                f"the previous one ({self.n_missing} missing). Call backward on every output, or "
                "run the extra forward under no_sync() or no_grad()")
        if self.armed and self.n_missing and n_samples != self.n_samples:
            raise RuntimeError(
                f"rank {self.t.rank}: a forward of {n_samples} samples after one of "
                f"{self.n_samples} that no backward has followed. If one backward is to follow "
                "both, no weight of this rank is right for both means: give them equally many "
                "samples, or call backward on each. If the first was not for training, run it "
                "under no_grad()")

    def absent(self, n_samples=0):
        """Take part in the others' backward without one here. What is sent is what passes without
        sending have left; their samples and n_samples are its weight."""
        if self.arrived:
            raise RuntimeError(f"rank {self.t.rank}: absent() in the middle of a backward")
        self.used = set()
        self.n_missing = 0
        self.n_samples = self.n_unsent + n_samples
        self.header = header.announce(self.n_samples, self.params, self.unsent)
        self.share_header()
        for bucket in self.buckets:
            self.launch(bucket)
        self.finish()

    def __call__(self, p):
        """The engine's call: p.grad is complete on this rank."""
        if self.armed and (p not in self.used or not self.n_missing):
            raise RuntimeError(
                f"rank {self.t.rank}: a gradient of shape {tuple(p.shape)} arrived that the latest "
                "forward does not account for. One synchronised backward wants one forward: run "
                "the others under no_sync(), and do not call backward twice on one forward")
        bucket = self.bucket_of[p]
        if self.armed:
            if not self.arrived:
                self.n_launched = 0
                self.share_header()
            bucket.take(p)
            self.arrived.append(p)
        else:
            self.unsent.add(p)
            if self.n_coming is not None:  # the first gradient of this backward
                self.n_unsent += self.n_coming
                self.n_coming = None
        bucket.n_missing -= 1
        if bucket.n_missing <= 0:  # less: without sending, of several forwards the last is counted
            self.on_full(bucket)
        if self.armed:
            self.launch_full()
            self.n_missing -= 1
            if not self.n_missing:
                self.finish()

    def share_header(self):
        """The first message of a backward that sends."""
        job = self.submit(header.share, self.header, self.all_reduce_header)
        self.jobs.append(job)

    def launch_full(self):
        """Send the buckets that are full, in order: one that is not holds back those behind it."""
        while self.n_launched < len(self.buckets):
            bucket = self.buckets[self.n_launched]
            if bucket.n_missing:
                break
            self.launch(bucket)
            self.n_launched += 1

    def launch(self, bucket):
        """Send a bucket; what this rank did not use counts as zeros."""
        while self.held and self.held[0][0].done:
            self.held.popleft()
        bucket.fill([p for p in bucket.params if p not in self.used])
        self.jobs.append(self.beside(bucket.flat, self.reduce, bucket))

    def beside(self, x, fn, *args):
        """fn(t, *args) in the background; on a GPU after what is now on the compute stream, on a
        stream of its own. Returns a job, after whose wait() the compute stream may go on with x."""
        if not self.overlap:
            return self.submit(fn, *args)
        job = self.submit(self.side_run, computed(x), x, fn, *args)
        return Joined(job, x)

    def side_run(self, t, event, x, fn, *args):
        return self.side.run(event, x, fn, t, *args)

    def submit(self, fn, *args):
        """fn(t, *args) in the background, or without overlap here and now; returns a job."""
        if self.overlap:
            return self.background.submit(fn, *args)
        fn(self.t, *args)
        return Done()

    def reduce(self, t, bucket):
        """Runs after the header's all-reduce, which was submitted first: its sums are there."""
        flat = bucket.flat
        with about(f"bucket {self.buckets.index(bucket)}"):
            if self.observer is not None:
                self.observer.before(flat, self.n_samples)
            n_total = header.n_samples(self.header)
            released = bucket.reduce(t, self.n_samples, n_total)
            if self.observer is not None:
                self.observer.after(flat)
        if released:
            event = computed(flat)
            if event:
                self.held.append((event, released))

    def finish(self):
        """The last gradient has come: wait for the means, and give them to the parameters."""
        for job in self.jobs:
            job.wait()
        self.jobs.clear()
        self.held.clear()  # the compute stream has waited for all that read it
        for p, is_used in zip(self.params, header.used_by_some(self.header), strict=True):
            if is_used or self.bucket_of[p].gives(p):
                self.bucket_of[p].give(p)
        if not self.rebuilt and header.used_by_all(self.header, self.t.size):
            self.rebuild()  # all ranks have the same answer, and come along
        self.arrived.clear()
        self.forget()
        self.on_end()

    def rebuild(self):
        """New buckets, in rank 0's order of arrival; then what has not arrived in this backward."""
        index = {p: i for i, p in enumerate(self.params)}
        arrived = dict.fromkeys([*self.arrived, *self.params])  # each once
        order = np.array([index[p] for p in arrived], np.int64)
        tree.broadcast(self.t, order, 0)
        self.build([self.params[i] for i in order])
        self.rebuilt = True

    def close(self):
        self.background.close()
        for remove in self.remove_hooks:
            remove()


def is_local(p):
    """Whether p.grad, once complete on this rank, will still be replaced by the mean over ranks."""
    return any(isinstance(hook, Reducer) for hook in p._hooks or ())
