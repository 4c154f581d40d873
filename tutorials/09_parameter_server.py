"""09  The parameter server: updates without waiting.        60 minutes, needs: 06

Asynchrony removes waiting and adds delay; delay lowers the largest usable learning rate.

    mpirun -n 4 python tutorials/09_parameter_server.py
    minidl run -n 4 tutorials/09_parameter_server.py          the same
    python tutorials/09_parameter_server.py --sim 4           picture: out/09_parameter_server.png

One rank holds the parameters, K bytes; the N others pull them, compute a gradient, push it, and
pull again. The server's link carries all of it, 2 N K bytes a step. In a ring of N ranks each sends
2 (N-1)/N K: the server is a bottleneck, which is why parameters are dealt to several of them. What
it buys is that nobody has to wait for the slowest. The rule says who waits:

    sync          all pushes of a step are averaged: data parallelism, at the slowest worker's pace
    async         a push is an update at once
    bounded (s)   the same, but who is more than s steps ahead of the slowest has to wait

An update then uses a gradient of weights that are tau updates old. With N workers of equal speed
tau = N-1: between my pull and my push each of the others pushes once. What does it cost? Descend on
x^2 lambda/2 at learning rate eta:

    x[k+1] = x[k] - eta lambda x[k - tau]

Put x[k] = z^k. At the border of stability z = e^(i phi) lies on the unit circle:

    z - 1 = -eta lambda z^-tau   =>   e^(i phi/2) 2i sin(phi/2) = -eta lambda e^(-i tau phi)

The sides agree in direction for phi = pi/(2 tau + 1), and then in length for

    eta lambda = 2 sin( pi / (4 tau + 2) )              2, 1, 0.618, 0.445 for tau = 0, 1, 2, 3

Papers: Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014; Ho
et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS
2013.
Exercises: `minidl exercise 09` writes work/09_parameter_server.py with the marked regions empty;
`minidl check 09` grades it.
"""

import math

import numpy as np

import minidl
from minidl import nn, optim
from minidl.comm import naive, ring, simulate
from minidl.comm.ledger import Ledger
from minidl.course.out import LINES, lanes
from minidl.data import datasets
from minidl.nn import functional as F
from minidl.parallel import average_gradients
from minidl.parallel.param_rules import ASYNC, Rule, each_push
from minidl.parallel.param_server import Server
from minidl.parallel.param_shards import HEADER_BYTES
from minidl.parallel.param_worker import Worker
from minidl.tutorial import Table, gather, host, launch, picture, progress, put, say


def may_pull(clocks, worker, s):
    """Whether a worker may pull, and so begin another step.

    clocks: {worker: how often it has pushed} of all workers that are still here."""
    # >>> exercise 09a: bounded staleness
    # A worker may begin a step while it is at most s steps ahead of the slowest one, and must wait
    # otherwise. The server asks again after each push, and when a worker has left.
    return clocks[worker] - min(clocks.values()) <= s
    # <<<


def mean_of_all(server):
    """One update with the mean gradient of a step, weighted by samples, once all have pushed.

    server.clocks   its keys are the workers that are still here
    server.inbox    {worker: (gradient, n_samples)}: what was pushed and not yet applied
    server.update   update(gradient) makes one step of the optimizer
    """
    # >>> exercise 09b: the synchronous update
    # Called after each push, and when a worker has left. If anybody who is here has not pushed yet,
    # or if there is nothing to apply, do nothing. Otherwise update once, with
    # sum(n_samples * gradient) / sum(n_samples) over the inbox, in the order of the workers'
    # numbers, and empty the inbox (server.inbox.clear()). Who pushed and left still counts.
    if not server.inbox or any(worker not in server.inbox for worker in server.clocks):
        return
    pushes = [server.inbox[worker] for worker in sorted(server.inbox)]
    total = sum(n_samples for _, n_samples in pushes)
    server.inbox.clear()
    server.update(sum(n_samples / total * gradient for gradient, n_samples in pushes))
    # <<<


SYNC = Rule("sync", lambda clocks, worker: may_pull(clocks, worker, 0), mean_of_all, goes_on=False)


def bounded(s):
    return Rule(f"bounded ({s})", lambda clocks, worker: may_pull(clocks, worker, s), each_push)


# -- a model and its data


def network():
    minidl.manual_seed(0)  # the same weights on every rank
    return nn.MLP(64, 32, 10)


def digits():
    images, labels = datasets.digits()[0][:]
    return images.reshape(-1, 64), labels


def sgd(params, lr=0.2):
    return optim.SGD(params, lr=lr)


def work(worker, model, data, seed, n_steps, batch, before=None, after=None):
    """A worker's loop; before(), after(): called between pull and gradient, gradient and push."""
    images, labels = data
    draw = minidl.Generator(seed)
    for _ in range(n_steps):
        worker.pull()
        if before:
            before()
        mine = draw.integers(0, len(images), (batch,))  # CuPy takes indices of either kind
        F.cross_entropy(model(images[mine]), labels[mine]).backward()
        if after:
            after()
        worker.push(batch)


# -- 1. these ranks


def on_these_ranks(t, data, args, table):
    """Rank 0 serves, the others train: bytes beside formulas, sync beside data parallelism."""
    n_workers = t.size - 1
    workers = t.subgroup(range(1, t.size))
    for rule in (SYNC, ASYNC):
        ledger, model = Ledger(t), network()
        if t.rank > 0:  # the workers compute; the server keeps its weights in the host's memory
            put(args, model)
        params = list(model.parameters())
        K = sum(p.nbytes for p in params)
        if t.rank > 0:
            train(workers, ledger, model, data, rule, args, table)
            continue
        server = Server(ledger, params, 1, rule, sgd)
        print(server.serve(), flush=True)
        pulled, pushed = (ledger.count(label=f"param_server.{way}") for way in ("pull", "push"))
        # a step pulls K and pushes K; in the end the result is pulled
        theory = (2 * args.steps + 1) * n_workers * K
        moved = pulled.bytes_sent + pushed.bytes_received
        table.row(f"{rule}: server's bytes", moved, theory, "exact")
        # a step: pull, its reply, push; in the end a pull, its reply, and a worker leaves
        theory = 3 * (args.steps + 1) * n_workers * HEADER_BYTES
        headers = ledger.count(label="param_server.header")
        n_bytes = headers.bytes_sent + headers.bytes_received
        table.row(f"{rule}: bytes of headers", n_bytes, theory, "exact")
        stale = server.staleness()
        table.row(f"{rule}: pushes", sum(stale.values()), args.steps * n_workers, "exact")
        mean = sum(tau * n for tau, n in stale.items()) / sum(stale.values())
        table.row(f"{rule}: mean staleness", mean, *([0, "exact"] if rule is SYNC else []))
    if t.rank > 0:
        n = math.ceil(K / 4 / n_workers) * n_workers  # rounded up: chunks of equal size
        ledger = Ledger(workers)
        ring.all_reduce(ledger, np.ones(n, np.float32))
        theory = args.steps * 2 * (n_workers - 1) * 4 * n // n_workers
        name = f"for comparison, a ring of {n_workers}: bytes that a rank sends"
        table.row(name, args.steps * ledger.bytes_sent, theory, "exact")


def train(workers, t, model, data, rule, args, table):
    """A worker; under SYNC beside a twin that is trained by data parallelism."""
    params, twin = list(model.parameters()), list(put(args, network()).parameters())
    optimizer = sgd(twin)

    def step_of_twin():
        for p, q in zip(params, twin, strict=True):
            q.grad = p.grad.copy()
        average_gradients(workers, twin, args.batch, in_place)
        optimizer.step()

    with Worker(t, params) as worker:
        after = step_of_twin if rule is SYNC else None
        work(worker, model, [put(args, x) for x in data], t.rank, args.steps, args.batch,
             after=after)
        worker.pull()
    if rule is SYNC:
        apart = max(float(np.abs(host(p) - host(q)).max())
                    for p, q in zip(params, twin, strict=True))
        # float32, the mean rounded in another order
        table.row("sync: weights, unlike data parallelism's", apart, 0, "abs<1e-5")


def in_place(t, x):
    """The naive all-reduce returns the sum; average_gradients wants it in x."""
    x[...] = naive.all_reduce(t, x)


# -- 2. what delay costs


def call_after_update(server, look):
    update = server.update

    def observed(values):
        update(values)
        look()

    server.update = observed


def descend(tau, rates, n_updates):
    """|x| after each update, (n_updates, len(rates)): descent on x^2/2 with gradients that are tau
    updates old, because tau+1 equal workers take turns. Each element of x has a rate of its own."""

    def rank(t):
        x = minidl.Tensor(np.ones(len(rates)), requires_grad=True)
        sizes = []
        if t.rank == 0:
            server = Server(t, [x], 1, ASYNC, lambda shard: sgd(shard, lr=1.0))
            call_after_update(server, lambda: sizes.append(np.abs(x.data)))
            server.serve()
            return np.array(sizes)
        with Worker(t, [x]) as worker:
            for _ in range(n_updates // (tau + 1)):
                worker.pull()
                t.compute(1.0)
                x.grad = rates * x.data
                worker.push()

    return simulate(tau + 2, rank)[0]


def largest_rate(tau, n_updates=320):
    """Bisection, 40 candidates at a time: the largest rate at which |x| does not grow."""
    low, high = 0.0, 2.5
    for _ in range(2):
        rates = np.linspace(low, high, 41)
        sizes = descend(tau, rates, n_updates)
        third = len(sizes) // 3
        stable = sizes[-third:].max(0) <= sizes[third:-third].max(0)
        last = int(np.flatnonzero(stable)[-1])
        low, high = rates[last], rates[min(last + 1, len(rates) - 1)]
    return (low + high) / 2


# -- 3. a slow worker, on a modelled clock


def simulated(rule, speeds, seconds, data, batch=16):
    """One server and len(speeds) simulated workers; worker i takes speeds[i] s for a gradient.

    Returns (server, [(time, loss)] after each update, [(worker, from, until, version read)])."""
    some = slice(0, 200)

    def rank(t):
        model = network()
        params = list(model.parameters())
        curve, spans = [], []
        if t.rank == 0:
            server = Server(t, params, 1, rule, sgd)

            def look():
                loss = F.cross_entropy(model(data[0][some]), data[1][some])
                curve.append((t.time(), float(loss.data)))

            call_after_update(server, look)
            server.serve()
            return server, curve
        with Worker(t, params) as worker:
            while t.time() < seconds:
                started = []

                def compute(started=started):
                    started.append(t.time())
                    t.compute(speeds[t.rank - 1])

                work(worker, model, data, 1000 * t.rank + len(spans), 1, batch, before=compute)
                spans.append((t.rank, started[0], t.time(), worker.versions[0]))
        return spans

    ranks = simulate(1 + len(speeds), rank)
    return *ranks[0], [span for spans in ranks[1:] for span in spans]


def time_to(curve, loss):
    """When the loss first was so low; infinite if it never was."""
    return next((when for when, now in curve if now <= loss), math.inf)


def main(t, args):
    table, data = Table(t), digits()
    if t.size > 1:
        say(t, f"1. Rank 0 serves, {t.size - 1} train on the digits, {args.steps} steps each.")
        on_these_ranks(t, data, args, table)
    say(t, "2. The largest learning rate at which delayed descent is stable.")
    taus = 0, 1, 2, 3, 7
    # every rank takes some of them: idle ones would keep the cores busy with waiting
    parts = gather(t, {tau: largest_rate(tau) for tau in taus[t.rank :: t.size]})
    if t.rank > 0:
        return table
    found = {tau: rate for part in parts for tau, rate in part.items()}
    for tau in taus:
        theory = 2 * math.sin(math.pi / (4 * tau + 2))
        table.row(f"tau = {tau}: largest eta lambda", found[tau], theory, "rel<0.02")

    say(t, "3. Four simulated workers on a modelled clock; then one of them three times slower.")
    server, even_async, _ = simulated(ASYNC, [1.0] * 4, 20.0, data)
    stale = [met - read for _, read, met, _ in server.log[4:]]  # the first round starts together
    table.row("equal workers: mean staleness, N-1", float(np.mean(stale)), 3, "exact")
    _, even_sync, _ = simulated(SYNC, [1.0] * 4, 20.0, data)
    sync_loss, async_loss = even_sync[19][1], even_async[19][1]  # update for update, async is worse
    table.row("20 updates: sync's loss (theory: async's)", sync_loss, async_loss, "<=")
    runs = {}
    for rule in progress(t, [SYNC, bounded(2), ASYNC], "training"):
        runs[rule.name] = simulated(rule, [1.0, 1.0, 1.0, 3.0], args.seconds, data)
        server, curve, _ = runs[rule.name]
        sync_curve = runs["sync"][1]
        table.modelled(f"{rule}, one slow: updates in {args.seconds:g} s", len(curve))
        if rule is SYNC:
            table.modelled("sync, one slow: s to a loss of 2", time_to(curve, 2.0))
        else:  # nobody waits for the slow one, or not at every step
            name = f"{rule}, one slow: s to a loss of 2 (theory: sync's)"
            table.modelled(name, time_to(curve, 2.0), time_to(sync_curve, 2.0), "<=")
    most = max(runs["bounded (2)"][0].leads.values())
    table.row("bounded (2): most steps ahead", most, 2, "exact")
    delayed = {tau: descend(tau, np.array([0.4]), 80)[:, 0] for tau in (0, 1, 3, 7)}
    picture(t, draw, runs, delayed, args.seconds)
    return table


def draw(plt, runs, delayed, seconds):
    """Above: who computes when, from which version. Below: loss in time; descent with delay."""
    figure = plt.figure(figsize=(14, 9))
    figure.suptitle("Above: a bar is a gradient, its number the version of the weights it is from")
    above, below = figure.subfigures(2, 1, height_ratios=[1, 1.15])
    for axes, (name, (_, _, spans)) in zip(above.subplots(1, len(runs)), runs.items(), strict=True):
        early = [span for span in spans if span[1] <= 10]
        lanes(axes, [f"worker {i}" for i in (1, 2, 3, 4)],
              [(worker - 1, start, end, LINES[worker - 1]) for worker, start, end, _ in early])
        for worker, start, _, version in early:
            axes.text(start + 0.1, worker - 1, version, va="center", color="white", fontsize=9)
        axes.set(xlim=(0, 11), xlabel="modelled seconds", title=name)
    left, right = below.subplots(1, 2)
    for name, (_, curve, _) in runs.items():
        left.plot(*zip(*curve, strict=True), label=name)
    left.set(xlabel="modelled seconds", ylabel="loss on the digits", xlim=(0, seconds),
             title="Worker 4 takes three times as long")
    for tau, sizes in delayed.items():
        right.semilogy(np.maximum(sizes, 1e-9) ** 2 / 2, label=f"tau = {tau}")
    right.set(xlabel="updates", ylabel="loss $x^2/2$", ylim=(1e-12, 1e6),
              title="Descent at $\\eta\\lambda$ = 0.4 with gradients tau updates old")
    for axes in (left, right):
        axes.legend()
    return figure


OPTIONS = {
    "steps": (20, "steps of each worker on these ranks"),
    "batch": (16, "samples of a worker's step"),
    "seconds": (75.0, "modelled seconds of the runs with a slow worker"),
}

if __name__ == "__main__":
    launch(main, OPTIONS, ranks=4)
