"""12  Offload: the optimizer runs in host memory.   60 minutes, needs: 05, 08

Training needs 16 bytes for each parameter. 12 of them can stay in host (CPU) memory. Then a step
sends 2 bytes down to the host and 2 bytes up to the device.

    mpirun -n 2 python tutorials/12_offload.py        or: minidl run -n 2 tutorials/12_offload.py
    python tutorials/12_offload.py --sim 2            picture: out/12_offload.png
                                                      trace for ui.perfetto.dev: out/12_trace.json

Mixed precision (tutorial 05) holds 16 bytes for each of X parameters: weight and gradient 2 + 2,
master, m and v 4 + 4 + 4. Forward and backward need only the first four bytes. The update needs the
other twelve bytes once a step, for simple arithmetic. So master, m and v can stay on the host. Each
step sends these bytes over the link between device and host:

    down   gradients   2X     as backward makes them; the device can then free each gradient
    up     weights     2X     bucket by bucket, while the host updates the next bucket

If the host does the update, no division of the 16 bytes sends less. With ZeRO on n ranks each rank
sends 1/n of these bytes, over its own link.

Take L equal buckets. Each bucket needs b seconds of backward, d seconds to be sent one way, and u
seconds of update. The link has latency alpha. Forward takes F seconds, so forward and backward
together take C = F + L b. If b > d, a step takes

    T = C + alpha + max( u + L d ,  L u + d ,  2 d + u + alpha )

The update waits for backward, and the next forward waits for the update. Meanwhile the device is
idle. A delayed update does not wait. During step i+1 the host applies the gradients of step i.
Meanwhile the device computes with weights that are one update old. The device waits only while the
weights are sent up:

    T = C + L d + alpha           if the host needs less than a step, L u < C

A batch of B tokens needs 6 X B flop: 6 X B / R seconds at R flop/s. Sending 4X bytes takes 4 X beta
seconds, with beta seconds a byte. So the transfer can be hidden behind the computing if B is at
least 2/3 beta R tokens, for any X.

Paper: Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training", 2021 (2101.06840).
Exercise: `minidl exercise 12` writes work/12_offload.py with the marked region empty;
`minidl check 12` grades it. minidl's own code: minidl/parallel/zero/offload.py
"""

import numpy as np

from minidl import manual_seed, nn, optim
from minidl.course.out import GREEN, GREY, ORANGE, lanes, line_at
from minidl.course.tutorial import Table, launch, picture, progress, put, say, write
from minidl.data import datasets
from minidl.nn import functional as F
from minidl.parallel import Offload, Zero2
from minidl.parallel.zero.lanes import Modelled


class HostAdam:
    """Adam on the host. The fp16 arrays `weights` are on the device, and each array is a bucket.

    The masters, m and v are on the host. lanes: an object with these methods. `copy("down", ...)`,
    `update(...)` and `copy("up", ...)` return a job at once. The job runs on its lane when the jobs
    in `after` have ended. `wait(jobs)` makes the device wait for these jobs."""

    def __init__(self, weights, lanes, lr=0.01):
        self.weights = weights
        self.lanes = lanes
        self.lr = lr
        self.master = [w.astype(np.float32) for w in weights]
        self.m = [np.zeros_like(w) for w in self.master]
        self.v = [np.zeros_like(w) for w in self.master]
        self.low = [w.copy() for w in weights]  # the weights to send up
        self.grads = [np.zeros_like(w) for w in weights]
        self.t = [0] * len(weights)
        self.down = [None] * len(weights)  # the jobs that copy the gradients down
        self.updated = [None] * len(weights)  # the jobs of the last step's delayed updates

    def ready(self, i, grad):
        """Starts to send `grad` down. Call it when backward has made the gradient of bucket i."""
        def copy():
            np.copyto(self.grads[i], grad)

        self.down[i] = self.lanes.copy("down", grad.nbytes, copy, label=f"{i}")

    def update(self, i, after):
        """Starts Adam on bucket i. Adam writes the masters and self.low[i]. Returns the job."""
        return self.lanes.update(self.low[i].size, lambda: self.adam(i), after, f"{i}")

    def send_up(self, i, after):
        """Starts to send the new weights of bucket i to the device. Returns the job."""
        def copy():
            np.copyto(self.weights[i], self.low[i])

        return self.lanes.copy("up", self.low[i].nbytes, copy, after, f"{i}")

    def adam(self, i):
        self.t[i] += 1
        g = self.grads[i].astype(np.float32)
        self.m[i] = 0.9 * self.m[i] + 0.1 * g
        self.v[i] = 0.999 * self.v[i] + 0.001 * g * g
        m = self.m[i] / (1 - 0.9 ** self.t[i])
        v = self.v[i] / (1 - 0.999 ** self.t[i])
        self.master[i] -= self.lr * m / (np.sqrt(v) + 1e-8)
        self.low[i][...] = self.master[i]

    def step(self):
        """Updates all buckets and sends their weights up. Call it after ready() of every bucket."""
        coming = []
        for i in reversed(range(len(self.weights))):
            updated = self.update(i, [self.down[i]])
            coming.append(self.send_up(i, [updated]))
        self.lanes.wait(coming)

    def delayed_step(self):
        """Does the work of step(), but one step later. Sends up the weights that the last step's
        update made. Starts an update with this step's gradients. This update runs during the next
        step."""
        # >>> exercise 12a: the one-step delayed update
        # Go through the buckets i, from the last to the first. If the step before started an
        # update, self.updated[i] is its job. Then send the weights of bucket i up, after this job.
        # In any case start the next update, after self.down[i], the job that copies the gradient
        # down. Keep the update's job in self.updated[i]. The update writes self.low[i], and the
        # copy up reads self.low[i]. The device must wait for the copies up, and for no other job.
        # In the first step there are no weights to send up.
        coming = []
        for i in reversed(range(len(self.weights))):
            after = [self.down[i]]
            if self.updated[i] is not None:
                coming.append(self.send_up(i, [self.updated[i]]))
                after.append(coming[-1])
            self.updated[i] = self.update(i, after)
        self.lanes.wait(coming)
        # <<<


def train(t, args, table):
    """Trains on the digits in fp16, with ZeRO stage 2 and AdamW on the host.

    Adds rows to the table."""
    manual_seed(0)  # the same weights on every rank
    model = Zero2(put(args, nn.MLP(64, 96, 96, 10).half()), t)
    optimizer = Offload(optim.AdamW(model.shards(), lr=0.01))
    images, labels = datasets.digits()[0][:]
    for step in progress(t, range(args.steps), "training"):
        order = np.random.default_rng(step).permutation(len(images))
        picked = order[t.rank::t.size][:60]
        x = images[picked].reshape(-1, 64).astype(np.float16)
        y = labels[picked]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(put(args, x)).float(), put(args, y))
        (loss * 128.0).backward()  # without a loss scale small fp16 gradients become 0
        on_device = optimizer.memory()["device"]  # without the gradients, which are on the host
        optimizer.step(unscale=1 / 128.0)
        model.gather()
    own = sum(shard.numel() for shard in model.shards())  # about 1 / n of the model
    sent = optimizer.lanes.bytes
    table.row("bytes on the device: 2 a parameter", on_device, 2 * own, "exact")
    table.row("bytes on the host: 16 a parameter", optimizer.memory()["host"], 16 * own, "exact")
    table.row("bytes down a step: 2 a parameter", sent["down"] // args.steps, 2 * own, "exact")
    table.row("bytes up a step: 2 a parameter", sent["up"] // args.steps, 2 * own, "exact")
    table.row("loss in the last step (theory: loss of a guess)", loss.item(), np.log(10))
    model.close()


def timeline(args, tokens, delayed):
    """Runs three steps of equal layers on a modelled clock. Returns (the lanes, the seconds of each
    step). tokens: the tokens of a batch. delayed: if True, the updates are delayed."""
    n = args.layer_elems
    link = args.link_us * 1e-6, 1e-9 / args.link_gb  # alpha, beta
    lanes = Modelled(link, 1e-9 * args.update_ns)
    weights = [np.zeros(n, np.float16) for _ in range(args.layers)]
    host = HostAdam(weights, lanes)

    layer_s = 2 * n * tokens / (args.tflops * 1e12)  # time of forward; backward takes twice as long
    ends = [0.0]
    for _ in range(3):
        lanes.compute(args.layers * layer_s, "forward")
        for i in reversed(range(args.layers)):
            lanes.compute(2 * layer_s, f"backward {i}")
            host.ready(i, np.ones(n, np.float16))
        if delayed:
            host.delayed_step()
        else:
            host.step()
        ends.append(lanes.time())
    return lanes, np.diff(ends)


def last_step(args, tokens, delayed):
    """Returns the seconds of the third step."""
    _, times = timeline(args, tokens, delayed)
    return times[-1]


def seconds(args, tokens):
    """Returns {name: seconds of a step}, by the formulas at the top of this file."""
    n = args.layer_elems
    L = args.layers
    d = 2e-9 * n / args.link_gb
    u = 1e-9 * n * args.update_ns
    alpha = args.link_us * 1e-6
    C = 6 * n * L * tokens / (args.tflops * 1e12)
    return {"update in the step": C + alpha + max(u + L * d, L * u + d, 2 * d + u + alpha),
            "delayed update": C + L * d + alpha}


def main(t, args):
    table = Table(t)
    say(t, f"1. {args.steps} steps on the digits in fp16, ZeRO 2, AdamW on the host.")
    train(t, args, table)
    if t.rank > 0:
        return table

    say(t, f"2. {args.layers} layers of {args.layer_elems:,} parameters on a modelled clock.")
    even = 2e3 / 3 * args.tflops / args.link_gb  # the number of tokens B with 6 X B / R = 4 X beta
    modelled, _ = timeline(args, even, False)
    link_s = modelled.busy("down") + modelled.busy("up")
    device_s = modelled.busy("device")
    table.modelled(f"{even:,.0f} tokens: computing, ms (theory: the link)",
                   1e3 * device_s, 1e3 * link_s, "rel<1e-9")
    # The formulas hold if there are enough tokens to hide the link and the host. Here the number of
    # tokens is 1.5 times the smallest number that is enough.
    tokens = 1.5 * max(even, 1e3 * args.update_ns * args.tflops / 6)
    runs = {delayed: timeline(args, tokens, delayed) for delayed in (False, True)}
    formulas = seconds(args, tokens)
    for (name, theory), (_, times) in zip(formulas.items(), runs.values(), strict=True):
        # The clock adds and the formula multiplies, so the results differ by rounding.
        table.modelled(f"{name}: ms of a step, {tokens:,.0f} tokens", 1e3 * times[-1],
                       1e3 * theory, "rel<1e-9")
    lanes_delayed, _ = runs[True]
    write("12_trace.json", lanes_delayed.trace)

    batches = np.geomspace(even / 8, 32 * even, 13)
    sweep = {delayed: [last_step(args, b, delayed) for b in batches] for delayed in runs}
    picture(t, args, draw, args, runs, batches, sweep, even)
    return table


def draw(plt, args, runs, batches, sweep, even):
    """Draws when each lane is busy, without and with delay (left). Right: the time of a step,
    divided by the time of forward and backward."""
    names = {"device": "device", "down": "link, down", "host": "host: Adam", "up": "link, up"}
    colours = dict(zip(names, ("#2171b5", ORANGE, "#756bb1", GREEN), strict=True))
    figure = plt.figure(figsize=(14, 6.2))
    left, right = figure.subfigures(1, 2, width_ratios=[1.7, 1])
    panels, axes = left.subplots(2, 1, sharex=True), right.subplots()
    compute = 6 * args.layers * args.layer_elems * batches / (args.tflops * 1e12)
    ways = (("update in the step", "the device waits for the host", colours["host"]),
            ("delayed by one step", "the host works at the same time", colours["up"]))
    for panel, delayed, (way, what, colour) in zip(panels, (False, True), ways, strict=True):
        modelled, times = runs[delayed]
        lanes(panel, list(names.values()), [
            (list(names).index(lane), 1e3 * start, 1e3 * end,
             "#9ecae1" if label.startswith("forward") else colours[lane])
            for lane, label, start, end in modelled.spans])
        for at in np.cumsum(times):
            panel.axvline(1e3 * at, color=GREY, linestyle=":", linewidth=1.2)
        panel.set_title(f"{way}: {what}, {1e3 * times[-1]:.2f} ms", loc="left")
        axes.plot(batches, np.array(sweep[delayed]) / compute, "o-", markersize=5, color=colour,
                  label=way)
    panels[1].set_xlabel("modelled time of three steps (ms); pale: forward")
    line_at(axes, "computing alone", y=1, at=0.03, color=colours["device"])
    line_at(axes, f"{even:,.0f} tokens:\ncomputing = link", x=even, at=0.75, color=GREY)
    axes.set(xscale="log", yscale="log", ylim=(0.85, None), xlabel="tokens in a batch",
             ylabel="time of a step / of computing", title="A larger batch hides the link")
    axes.set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    axes.minorticks_off()
    axes.legend(loc="upper right")
    return figure


OPTIONS = {
    "steps": (10, "training steps on the digits"),
    "layers": (6, "layers of the modelled network"),
    "layer_elems": (100_000, "parameters of each of these layers"),
    "tflops": (100.0, "Tflop/s of the modelled device"),
    "link_gb": (16.0, "GB/s of the modelled link, each way"),
    "link_us": (10.0, "microseconds until the first byte of a copy arrives"),
    "update_ns": (0.3, "ns that the host needs to update a parameter: 30 bytes at 100 GB/s"),
}

if __name__ == "__main__":
    launch(main, OPTIONS, ranks=2)
