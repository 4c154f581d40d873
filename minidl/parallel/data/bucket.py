"""Buckets: gradients are sent in groups, while backward still computes the other gradients.

The plain form: minidl/plain/buckets.py. Here a background thread runs an all-reduce of each bucket
while backward goes on. Backward calls a hook when a gradient is complete. So the Reducer knows when
a bucket is full. A bucket is one flat array, and after the all-reduce the gradients are views of
it.

All ranks must send the buckets in the same order. The best order is the order in which backward
completes the gradients. This order is not known before the first backward. So in the first
backward, the buckets have the parameters in reverse order: the parameter that was defined last
comes first. Then rank 0 broadcasts the order in which its gradients arrived, and all ranks rebuild
the buckets, once.
A header is sent before the first bucket (header.py). The header tells every rank which parameters
no rank used, and which parameters only some ranks used.

Sources: Li et al. 2020 (arXiv 2006.15704), section 3.2; the rule in assign() is from PyTorch's
reducer.
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
from minidl.tensor import LeafHook


def default_all_reduce(params):
    """Returns the all-reduce to use: the ring, or device.all_reduce for parameters on a GPU."""
    return ring.all_reduce if params[0]._xp is np else device.all_reduce


def weighted_mean(t, buffer, n_samples, n_total, all_reduce):
    """Replaces buffer by the mean over all samples. This is the sum over ranks r of n_r buffer_r,
    divided by n_total. n_r and buffer_r are n_samples and buffer of rank r. n_total is the sum of
    all n_r. Collective.

    It takes three steps: multiply by a weight, sum over ranks, divide by the number of ranks. The
    weight is exactly 1.0 if all ranks have the same number of samples. Equal batches then give the
    same bits as a plain mean. Raises ValueError if all_reduce does not sum in place."""
    weight(buffer, n_samples, n_total, t.size)
    total = all_reduce(t, buffer)
    xp = backend.xp_of([buffer])
    if total is not None and buffer.size and not xp.may_share_memory(total, buffer):
        raise ValueError(
            f"rank {t.rank}: wanted an all_reduce that writes the sum into its array, as the "
            "functions of minidl.comm do; got an all_reduce that returns a new array. Pass this "
            "function instead: def f(t, x): x[...] = all_reduce(t, x)")
    buffer /= t.size


def weight(buffer, n_samples, n_total, n):
    """Multiplies buffer by n_samples * n / n_total, in place. This factor is the weight of this
    rank. n_samples: the number of samples of this rank. n_total: the number of samples of all n
    ranks. The mean of all ranks' weights is 1."""
    if n_samples == 0:
        buffer[...] = 0  # not `*= 0`: a mean over 0 samples is nan, and 0 * nan is nan
    elif n_samples * n != n_total:
        buffer *= buffer.dtype.type(n_samples * n / n_total)


def assign(n_bytes, cap, first_cap=None):
    """Cuts a list of parameters into runs. A run is a few consecutive parameters. n_bytes: the
    sizes of the parameters, in bytes. Returns a list with the parameters' indices of each run, such
    as [[0, 1], [2], ...].

    A run ends as soon as it has `cap` bytes or more. For the first run the limit is `first_cap`,
    unless first_cap is None. So a run may exceed its limit by at most one parameter."""
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
    """Returns a list of lists: the parameters of each bucket. All parameters of a bucket have one
    dtype.

    cap, first_cap: as in assign(). number: {parameter: the number of its group}, or None. ZeRO
    passes `number`, and then a bucket never mixes parameters of two groups."""
    kinds = {}
    for p in params:
        group = None if number is None else number[p]
        kinds.setdefault((p.dtype, group), []).append(p)

    buckets = []
    for kind in kinds.values():
        n_bytes = [p.nbytes for p in kind]
        first = None if buckets else first_cap  # only the first bucket has the limit `first_cap`
        for run in assign(n_bytes, cap, first):
            buckets.append([kind[i] for i in run])
    return buckets


class Bucket:
    """Parameters whose gradients are sent together.

    flat     a 1-d array for all gradients, in the same memory (host or GPU) as the parameters. The
             array has the accumulation dtype (fp16 gradients are summed in fp32)
    views    {parameter: its part of `flat`, in the parameter's shape}"""

    def __init__(self, params, all_reduce):
        self.params = params
        self.all_reduce = all_reduce
        xp = params[0]._xp
        dtype = backend.accumulate_dtype(params[0].dtype)
        self.flat = xp.zeros(sum(p.numel() for p in params), dtype)
        views = flat.views(self.flat, [p.shape for p in params])
        self.views = dict(zip(params, views))
        self.n_missing = 0  # how many gradients this backward must still compute

    def take(self, p):
        """The Reducer calls take() when p's gradient is complete. A plain Bucket does nothing here,
        because fill() copies all gradients of the bucket together. On a GPU this takes one
        launch."""

    def fill(self, unused):
        """Copies the gradients into `flat`. For a parameter without a gradient it writes zeros.
        unused: the parameters that this backward did not reach."""
        # If the gradients are views of `flat`, backward has already written into `flat`.
        if all(backend.array_of(p.grad) is self.views[p] for p in self.params):
            return
        flat.fill(self.flat, [gradient_or_zeros(p) for p in self.params])

    def reduce(self, t, n_samples, n_total):
        """Replaces `flat` by the mean over the n_total samples of all ranks. n_samples: how many of
        these samples this rank has. Runs in the background thread. Returns a list of arrays, or
        None. The bucket no longer needs these arrays, but a GPU may still be reading them."""
        weighted_mean(t, self.flat, n_samples, n_total, self.all_reduce)

    def give(self, p):
        """Sets p.grad to p's view of `flat`, or to a copy if the dtypes differ."""
        view = self.views[p]
        p.grad = view if view.dtype == p.dtype else view.astype(p.dtype)

    def gives(self, p):
        """Returns True if p gets a gradient although no rank used p (compress.py). The answer is
        the same on all ranks."""
        return False

    def bytes_sent(self, t, n_backwards):
        """Returns the number of bytes that this rank sends in n_backwards backwards, if the
        all-reduce is a ring."""
        return n_backwards * ring.bytes_sent(self.flat.size, self.flat.itemsize, t.size, t.rank)


class Done:
    """A job that is already finished: wait() returns immediately."""

    def wait(self):
        pass


class Joined:
    """A job that works on the array x. Its work runs on a side stream of the GPU. wait() waits
    until the job has put its work on the side stream. wait() also makes the compute stream wait
    until this work is done."""

    def __init__(self, job, x):
        self.job, self.x = job, x

    def wait(self):
        join(self.x, self.job.wait())


class Unsent:
    """Keeps a record of unsent gradients. Backwards under no_sync() have computed these gradients.
    The next backward outside of no_sync() sends them, together with its own gradients.

    params     the parameters whose `grad` contains an unsent gradient
    n_samples  the number of samples of the backwards that computed these gradients
    n_coming   the number of samples of the latest forward. It becomes None when the backward of
               this forward begins"""

    def __init__(self):
        self.n_coming = None
        self.forget()

    def forget(self):
        """Forgets all unsent gradients and their samples."""
        self.params = set()
        self.n_samples = 0

    def add(self, p):
        """Adds the parameter p. A backward under no_sync() calls this when p's gradient is
        complete."""
        self.params.add(p)
        if self.n_coming is not None:  # True for the first gradient of this backward
            self.n_samples += self.n_coming
            self.n_coming = None

    def discard(self, p):
        """Removes the parameter p, because p's gradient was cleared. When the last parameter has
        been removed, n_samples becomes 0."""
        self.params.discard(p)
        if not self.params:
            self.forget()


class Reducer(LeafHook):
    """Collects the gradients of a backward in buckets, and averages the buckets over ranks in a
    fixed order.

    make_buckets(order)  a function that returns a list of Buckets. order: the parameters, in the
                         order in which their gradients are expected
    adapt                if True, the Reducer rebuilds the buckets once, in the order in which the
                         gradients arrived
    on_full(bucket)      a function that is called when the bucket's last gradient is complete on
                         this rank
    on_end()             a function that is called at the end of each backward that sends its
                         gradients. A backward under no_sync sends nothing

    expect() announces a backward. After the backward's last gradient the Reducer waits for the mean
    gradients, and stores each mean in its parameter's `grad`. So p.grad is complete when
    loss.backward() returns. (Under no_sync nothing is sent and nothing is averaged.)"""

    def __init__(self, t, params, all_reduce, make_buckets, adapt=True, overlap=True):
        self.background = Background(t)
        self.t = self.background.transport  # a copy of t: messages to the copy never arrive on t
        self.overlap = overlap
        self.params = params
        # the header is a NumPy array, even if the gradients are on a GPU
        self.all_reduce_header = all_reduce if params[0]._xp is np else ring.all_reduce
        self.side = SideStream()
        self.held = deque()  # (event, arrays that the GPU reads until the event)
        self.make_buckets = make_buckets
        self.rebuilt = not adapt
        self.averages = adapt  # True: gradients are averaged; False: a ZeRO stage shards gradients
        self.on_full = lambda bucket: None
        self.on_end = lambda: None
        self.observer = None  # sees each bucket before and after it is sent (noise_scale.py)
        self.jobs = []
        self.arrived = []  # parameters in order of arrival in this backward
        self.n_missing = 0
        self.armed = False  # True: the coming backward sends its gradients
        self.unsent = Unsent()
        self.build(list(reversed(params)))
        self.remove_hooks = [p.add_leaf_hook(self) for p in params]

    def build(self, order):
        """Makes the buckets. order: the parameters, in the order of their expected gradients."""
        self.buckets = self.make_buckets(order)
        self.bucket_of = {p: b for b in self.buckets for p in b.params}

    def expect(self, used, n_samples, sends=True):
        """Announces a backward. used: the leaves of the graph that this backward will reach.
        n_samples: the number of samples of the forward before this backward. sends: False under
        no_sync. Raises RuntimeError as check_expected() does.

        A backward sends its own gradients, and the gradients of earlier backwards under no_sync
        that are not sent yet. The weight of this sum is the number of samples of all these
        backwards. A forward without a backward adds no samples."""
        used = {p for p in self.params if p in used}
        waiting = self.unsent.params
        if waiting and all(p.grad is None for p in waiting):  # the user cleared these gradients
            self.unsent.forget()
        if sends:
            n_samples += self.unsent.n_samples
            self.check_expected(used, n_samples)
        for bucket in self.buckets:
            bucket.n_missing = sum(p in used for p in bucket.params)
        self.armed = sends
        if sends:
            self.used = used
            self.n_missing = len(used)
            self.n_samples = n_samples
            self.header = header.announce(n_samples, self.params, used | self.unsent.params)
        else:
            self.unsent.n_coming = n_samples

    def cleared(self, p):
        """Notes that p has no unsent gradient any more. zero_grad() calls this after it has cleared
        p's gradient."""
        self.unsent.discard(p)

    def check_expected(self, used, n_samples):
        """Checks the coming backward. Raises RuntimeError if this backward sends nothing while the
        other ranks wait, or if its gradients do not get the right weight."""
        if not used:
            raise RuntimeError(
                f"rank {self.t.rank}: this forward used none of the model's {len(self.params)} "
                "parameters, so its backward would send nothing while the other ranks wait. If "
                "this rank has no batch, call model.absent()")
        if self.arrived:  # the previous backward is not over
            raise RuntimeError(
                f"rank {self.t.rank}: a forward began, but the backward of the previous forward "
                f"has not reached all parameters ({self.n_missing} are missing). Call backward on "
                "every output, or run the extra forward under no_sync() or no_grad()")
        if self.armed and self.n_missing and n_samples != self.n_samples:
            raise RuntimeError(
                f"rank {self.t.rank}: got a forward of {n_samples} samples after a forward of "
                f"{self.n_samples} samples whose backward has not run. One backward for two "
                "forwards wants the same number of samples in both forwards. Use equal numbers, "
                "or call backward after each forward. If the first forward was not for training, "
                "run it under no_grad()")

    def absent(self, n_samples=0):
        """Takes part in a backward of the other ranks, without a backward on this rank.

        Sends the gradients of earlier backwards under no_sync, and zeros for all other parameters.
        Their weight is the number of samples of these backwards, plus n_samples. Raises
        RuntimeError if a backward of this rank is not over yet."""
        if self.arrived:
            raise RuntimeError(f"rank {self.t.rank}: absent() was called in the middle of a "
                               "backward. On a rank that has no batch, call absent() instead of a "
                               "backward")
        self.used = set()
        self.n_missing = 0
        self.n_samples = self.unsent.n_samples + n_samples
        self.header = header.announce(self.n_samples, self.params, self.unsent.params)
        self.share_header()
        for bucket in self.buckets:
            self.launch(bucket)
        self.finish()

    def gradient_ready(self, p):
        """Counts p's gradient in its bucket, and sends the full buckets. Backward calls this when
        p.grad is complete on this rank. Raises RuntimeError if the latest forward did not use p, or
        if the backward of that forward is already over."""
        if self.armed and (p not in self.used or not self.n_missing):
            raise RuntimeError(
                f"rank {self.t.rank}: got a gradient of a parameter of shape {tuple(p.shape)} at "
                "the wrong time. The latest forward did not use this parameter, or the backward of "
                "that forward was already over. A backward that sends gradients wants exactly one "
                "forward. Run other forwards under no_sync(), and do not call backward twice on "
                "one forward")
        bucket = self.bucket_of[p]
        if self.armed:
            if not self.arrived:
                self.n_launched = 0
                self.share_header()
            bucket.take(p)
            self.arrived.append(p)
        else:
            self.unsent.add(p)
        bucket.n_missing -= 1
        # n_missing may fall below 0: under no_sync several forwards may run before their backwards,
        # but n_missing was set for the last forward only
        if bucket.n_missing <= 0:
            self.on_full(bucket)
        if self.armed:
            self.launch_full()
            self.n_missing -= 1
            if not self.n_missing:
                self.finish()

    def share_header(self):
        """Sends the header. It is the first message of a backward."""
        job = self.submit(header.share, self.header, self.all_reduce_header)
        self.jobs.append(job)

    def launch_full(self):
        """Sends the full buckets, in order. A full bucket waits if a bucket before it is not
        full."""
        while self.n_launched < len(self.buckets):
            bucket = self.buckets[self.n_launched]
            if bucket.n_missing:
                break
            self.launch(bucket)
            self.n_launched += 1

    def launch(self, bucket):
        """Sends a bucket. Parameters without a gradient on this rank count as zeros."""
        while self.held and self.held[0][0].done:
            self.held.popleft()
        bucket.fill([p for p in bucket.params if p not in self.used])
        self.jobs.append(self.beside(bucket.flat, self.reduce, bucket))

    def beside(self, x, fn, *args):
        """Runs fn(t, *args) in the background. fn is a function that works on the array x, and t is
        the Reducer's transport. On a GPU this work runs on a second stream, after all work that is
        now on the compute stream. Returns a job. After job.wait() the compute stream may use x."""
        if not self.overlap:
            return self.submit(fn, *args)
        job = self.submit(self.side_run, computed(x), x, fn, *args)
        return Joined(job, x)

    def side_run(self, t, event, x, fn, *args):
        return self.side.run(event, x, fn, t, *args)

    def submit(self, fn, *args):
        """Runs the function fn(t, *args) in the background, with the Reducer's transport t. If
        `overlap` is False, runs fn now, in this thread. Returns a job."""
        if self.overlap:
            return self.background.submit(fn, *args)
        fn(self.t, *args)
        return Done()

    def reduce(self, t, bucket):
        """Replaces the gradients of a bucket by their means over all samples of all ranks. The
        header was sent before, so the number of samples is known."""
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
        """Ends a backward: waits for the means, and makes them the parameters' gradients."""
        for job in self.jobs:
            job.wait()
        self.jobs.clear()
        self.held.clear()  # the compute stream has waited for every job that reads these arrays
        for p, is_used in zip(self.params, header.used_by_some(self.header), strict=True):
            if is_used or self.bucket_of[p].gives(p):
                self.bucket_of[p].give(p)
        if not self.rebuilt and header.used_by_all(self.header, self.t.size):
            self.rebuild()  # all ranks have the same header, so all ranks rebuild now
        self.arrived.clear()
        self.unsent.forget()
        self.on_end()

    def rebuild(self):
        """Makes new buckets, in the order in which the gradients arrived on rank 0. Parameters
        whose gradients did not arrive in this backward come last. Collective."""
        index = {p: i for i, p in enumerate(self.params)}
        arrived = dict.fromkeys([*self.arrived, *self.params])  # each parameter once
        order = np.array([index[p] for p in arrived], np.int64)
        tree.broadcast(self.t, order, 0)
        self.build([self.params[i] for i in order])
        self.rebuilt = True

    def close(self):
        self.background.close()
        for remove in self.remove_hooks:
            remove()


def is_local(p):
    """Returns True if p has the hook of a Reducer. This Reducer replaces p.grad by the mean over
    ranks."""
    return any(isinstance(hook, Reducer) for hook in p._hooks or ())
