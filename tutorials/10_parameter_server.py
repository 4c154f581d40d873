"""10  The parameter server: updates without waiting.        60 minutes, needs: 07

With asynchronous updates no worker waits, but gradients are applied late. The later a gradient is
applied, the smaller the learning rate must be. Otherwise the training diverges.

    mpirun -n 4 python tutorials/10_parameter_server.py
    minidl run -n 4 tutorials/10_parameter_server.py          the same
    python tutorials/10_parameter_server.py --sim 4           picture: out/10_parameter_server.png

One rank, the server, holds the parameters, K bytes. The N other ranks are the workers. A worker
pulls the parameters, computes a gradient, pushes it, and pulls again. The server's link carries
2 N K bytes a step. In a ring of N ranks each rank sends only 2 (N-1)/N K, so the server is a
bottleneck. But with a server you can choose when a worker must wait:

    sync          the server averages all pushes of a step; each step waits for the slowest worker
    async         the server applies each push at once
    bounded (s)   like async, but a worker that is more than s steps ahead of the slowest must wait

With async, a gradient is applied tau updates after its worker pulled the weights. With N equal
workers tau = N-1: between a worker's pull and its push each other worker pushes once. What does the
delay cost? Take gradient descent on lambda x^2/2 with learning rate eta:

    x[k+1] = x[k] - eta lambda x[k - tau]

Put x[k] = z^k. At the limit of stability z = e^(i phi) lies on the unit circle:

    z - 1 = -eta lambda z^-tau   =>   e^(i phi/2) 2i sin(phi/2) = -eta lambda e^(-i tau phi)

The two sides have the same direction for phi = pi/(2 tau + 1). Then they have the same length for

    eta lambda = 2 sin( pi / (4 tau + 2) )              2, 1, 0.618, 0.445 for tau = 0, 1, 2, 3

Papers: Li et al., "Scaling distributed machine learning with the parameter server", 2014; Ho et
al., "More effective distributed ML via a stale synchronous parallel parameter server", 2013.
Exercises: `minidl exercise 10` writes work/10_parameter_server.py with the marked regions empty;
`minidl check 10` grades it.
"""

import numpy as np

import minidl
from minidl import nn, optim
from minidl.comm import Ledger, ring, simulate
from minidl.course.out import LINES, lanes
from minidl.course.tutorial import Table, launch, picture, progress, put, say
from minidl.data import datasets
from minidl.nn import functional as F
from minidl.parallel.server.rules import ASYNC, Rule, each_push
from minidl.parallel.server.server import Server
from minidl.parallel.server.worker import Worker


def may_pull(clocks, worker, s):
    """Returns True if `worker` may pull, and so begin another step.

    clocks: {worker: number of its pushes}, of all workers that have not left."""
    # >>> exercise 10a: bounded staleness
    # A worker may begin a step if it is at most s steps ahead of the slowest worker. Otherwise it
    # must wait. The server calls may_pull again after each push, and after a worker has left.
    return clocks[worker] - min(clocks.values()) <= s
    # <<<


def mean_of_all(server):
    """When all workers have pushed, makes one update with the mean gradient. The gradients are
    weighted by n_samples.

    server.clocks   its keys are the workers that have not left
    server.inbox    {worker: (gradient, n_samples)}: pushes that are not applied yet
    server.update   update(gradient) makes one step of the optimizer"""
    # >>> exercise 10b: the synchronous update
    # The server calls this function after each push, and after a worker has left. Do nothing while
    # the push of a worker in server.clocks is missing, or if the inbox is empty. Otherwise call
    # server.update once, with sum(n_samples * gradient) / sum(n_samples) over the inbox. Add in the
    # order of the workers' numbers. Then empty the inbox (server.inbox.clear()). If a worker pushed
    # and then left, its push counts.
    if not server.inbox or any(worker not in server.inbox for worker in server.clocks):
        return
    pushes = [server.inbox[worker] for worker in sorted(server.inbox)]
    total = sum(n_samples for _, n_samples in pushes)
    server.inbox.clear()
    server.update(sum(n_samples / total * gradient for gradient, n_samples in pushes))
    # <<<


def at_most(s):
    """Returns the function that a Rule needs: may_pull with this s."""
    return lambda clocks, worker: may_pull(clocks, worker, s)


def bounded(s):
    return Rule(f"bounded ({s})", at_most(s), each_push)


SYNC = Rule("sync", at_most(0), mean_of_all, goes_on=False)


def network():
    minidl.manual_seed(0)  # the same weights on every rank
    return nn.Sequential(nn.Flatten(), nn.MLP(64, 32, 10))


def sgd(lr):
    """Returns the function that a Server needs. It makes an SGD optimizer for the parameters that
    it gets."""
    return lambda parameters: optim.SGD(parameters, lr=lr)


def train(t, args, rule, seconds=np.inf, slow=1.0, steps=np.inf):
    """Trains on the digits. The training ends after `seconds` or after `steps`, whichever comes
    first.

    Rank 0 serves, and returns the server. The other ranks are workers. A worker computes a gradient
    in one modelled second, and the last rank in `slow` seconds. A worker returns a list with
    (worker, start, end, version of the weights, loss with these weights) of each gradient."""
    model = network()
    if t.rank == 0:  # the server's weights are in CPU memory; only workers use a GPU
        server = Server(t, list(model.parameters()), 1, rule, sgd(lr=0.1))
        server.serve()
        return server

    model = put(args, model)
    images, labels = datasets.digits()[0][:]
    images = put(args, images)
    labels = put(args, labels)
    random = minidl.Generator(t.rank)
    is_last = t.rank == t.size - 1
    spans = []
    with Worker(t, list(model.parameters())) as worker:
        while len(spans) < steps and t.time() < seconds:
            worker.pull()
            start = t.time()
            loss = F.cross_entropy(model(images[:200]), labels[:200])

            mine = random.integers(0, len(images), (16,))
            F.cross_entropy(model(images[mine]), labels[mine]).backward()
            t.compute(slow if is_last else 1.0)
            spans.append((t.rank, start, t.time(), worker.versions[0], float(loss.array)))
            worker.push(len(mine))
    return spans


def on_these_ranks(t, args, table):
    """Counts the bytes that the server sends and receives, and the bytes that a rank sends in a
    ring of all workers.

    Adds rows to the table."""
    n_workers = t.size - 1
    K = sum(p.nbytes for p in network().parameters())
    for rule in SYNC, ASYNC:
        ledger = Ledger(t)
        server = train(ledger, args, rule, steps=args.steps)
        if isinstance(server, Server):
            print(server.report(), flush=True)
            pulled = ledger.count(label="param_server.pull").bytes_sent
            pushed = ledger.count(label="param_server.push").bytes_received
            through = (pulled + pushed) // args.steps
            theory = 2 * n_workers * K
            table.row(f"{rule}: bytes through the server in a step", through, theory, "exact")

    if t.rank > 0:
        ledger = Ledger(t.subgroup(range(1, t.size)))
        ring.all_reduce(ledger, np.ones(K // 4, np.float32))
        theory = 2 * (n_workers - 1) * K / n_workers
        # The sizes of two chunks may differ by one float. A rank sends all chunks except one, and
        # does this twice.
        table.row(f"ring of {n_workers}: bytes that a rank sends in a step", ledger.bytes_sent,
                  theory, "abs<8")


def descend(tau, rates, n_updates):
    """Runs gradient descent on x^2/2. Returns |x| before each update: (n_updates, len(rates)).

    Each gradient is computed from weights that are tau updates old, because tau+1 equal workers
    take turns. Each element of x has its own learning rate."""
    sizes = [None] * n_updates

    def rank(t):
        x = minidl.Tensor(np.ones(len(rates)), requires_grad=True)
        if t.rank == 0:
            return Server(t, [x], 1, ASYNC, sgd(lr=1.0)).serve()
        with Worker(t, [x]) as worker:
            for _ in range(n_updates // (tau + 1)):
                worker.pull()
                sizes[worker.versions[0]] = np.abs(x.array)
                t.compute(1.0)
                x.grad = rates * x.array
                worker.push()

    simulate(tau + 2, rank)
    return np.array([size for size in sizes if size is not None])


def largest_rate(tau):
    """Tries 2001 learning rates. Returns the largest one at which |x| does not grow."""
    rates = np.linspace(0, 2.5, 2001)
    sizes = descend(tau, rates, n_updates=320)
    third = len(sizes) // 3
    in_the_middle = sizes[third:-third].max(0)
    at_the_end = sizes[-third:].max(0)
    return rates[at_the_end <= in_the_middle].max()


def seconds_to(most, spans):
    """Returns the first time at which a worker begins with weights whose loss is at most `most`.
    Returns inf if there is no such time. spans: a list as train() returns it."""
    return min((start for _, start, _, _, loss in spans if loss <= most), default=np.inf)


def on_a_modelled_clock(t, args, table):
    """Simulates four equal workers, then four with a slow one. Returns {rule's name: one list, the
    results of train() on all workers}."""
    server, *_ = simulate(5, train, args, ASYNC, 20.0)
    after_the_first_round = server.log[4:]  # in the first round all workers start together
    stale = [met - read for _, read, met, _ in after_the_first_round]
    table.row("4 equal workers: mean staleness, N-1", float(np.mean(stale)), 3, "exact")

    runs = {}
    last_takes_s = 3.0
    for rule, most in progress(t, [(SYNC, 0), (bounded(2), 2), (ASYNC, np.inf)], "training"):
        server, *workers = simulate(5, train, args, rule, args.seconds, last_takes_s)
        runs[rule.name] = [span for spans in workers for span in spans]
        table.modelled(f"{rule}, one slow worker: updates in {args.seconds:g} s", server.version)
        table.row(f"{rule}, one slow worker: most steps ahead", max(server.leads.values()), most,
                  "<=")

    found = seconds_to(2.2, runs["async"])
    theory = seconds_to(2.2, runs["sync"])
    table.modelled("one slow worker: s to loss 2.2, async (theory: sync)", found, theory, "<=")
    return runs


def main(t, args):
    table = Table(t)
    if t.size > 1:
        say(t, f"1. Rank 0 serves, {t.size - 1} workers train, {args.steps} steps each.")
        on_these_ranks(t, args, table)
    if t.rank > 0:
        return table

    say(t, "2. The largest stable learning rate of gradient descent with delay tau.")
    for tau in 0, 1, 2, 3, 7:
        theory = 2 * np.sin(np.pi / (4 * tau + 2))
        table.row(f"tau = {tau}: largest eta lambda", largest_rate(tau), theory, "rel<0.02")

    say(t, "3. Four simulated workers on a modelled clock. Then one worker is three times slower.")
    runs = on_a_modelled_clock(t, args, table)

    one_rate = np.array([0.4])
    delayed = {tau: descend(tau, one_rate, n_updates=80)[:, 0] for tau in (0, 1, 3, 7)}
    picture(t, args, draw, runs, delayed, args.seconds)
    return table


def draw(plt, runs, delayed, seconds):
    """Draws when each worker computes, and with which weights (above). Below: the loss of each
    rule, and gradient descent with delayed gradients."""
    figure = plt.figure(figsize=(14, 9))
    figure.suptitle("Each bar is one gradient. Its number is the version of the weights "
                    "that it was computed with.")
    above, below = figure.subfigures(2, 1, height_ratios=[1, 1.15])
    for axes, (name, spans) in zip(above.subplots(1, len(runs)), runs.items(), strict=True):
        early = [span for span in spans if span[1] <= 10]
        lanes(axes, [f"worker {i}" for i in (1, 2, 3, 4)],
              [(worker - 1, start, end, LINES[worker - 1]) for worker, start, end, *_ in early])
        for worker, start, _, version, _ in early:
            axes.text(start + 0.1, worker - 1, version, va="center", color="white", fontsize=9)
        axes.set(xlim=(0, 11), xlabel="modelled seconds", title=name)
    left, right = below.subplots(1, 2)
    for name, spans in runs.items():
        left.plot(*zip(*sorted((start, loss) for _, start, _, _, loss in spans)), label=name)
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
    "steps": (20, "steps of each worker in part 1"),
    "seconds": (75.0, "modelled seconds of the runs with a slow worker"),
}

if __name__ == "__main__":
    launch(main, OPTIONS, ranks=4)
