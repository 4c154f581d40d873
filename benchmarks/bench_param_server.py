"""What does a parameter server send, and when are asynchronous updates faster?

    python benchmarks/bench_param_server.py [--elems 100000] [--seconds 120] [--out F.json]

Everything is simulated with a modelled clock (1 Gbit/s, 50 us). So the results are the same on
every machine. The benchmark prints two tables:

    bytes     bytes that the ledger counts in a step at the busiest of S servers, for N workers, and
              the formula 2 N K / S for weights of K bytes. The table also has the bytes of the
              busiest rank of a ring of N workers, and the seconds of a step that computes nothing
    time      seconds until the loss is at most --excess above the best loss. The task is least
              squares with noise, in batches. A gradient takes 1 s, or 3 s on a slow worker.
              The rule Geo sends the change of the weights every 4 steps
"""

import argparse
import math

import numpy as np
from common import bar, device_option, finish, heading, number, row

import minidl
from minidl import optim
from minidl.comm import Ledger, Links, ring, simulate
from minidl.parallel.server.rules import ASYNC, GEO, SYNC, bounded
from minidl.parallel.server.server import Server
from minidl.parallel.server.worker import Worker
from minidl.tensor import Tensor

LINKS = Links.uniform(50e-6, 8e-9)
GEO_STEPS = 4


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--elems", type=int, default=100_000, help="float32 parameters")
    parser.add_argument("--seconds", type=float, default=120.0, help="modelled, of each training")
    parser.add_argument("--excess", type=float, default=0.5, help="loss above the best one")
    device_option(parser, "all ranks are simulated on a modelled clock")
    parser.add_argument("--out", help="JSON file")
    return parser.parse_args()


# -- bytes


def step_bytes(n_servers, n_workers, n_elems):
    """Returns two numbers: the bytes of weights and gradients at the busiest server, and the
    modelled seconds of a synchronous step."""

    def body(t):
        ledger = Ledger(t)
        params = [Tensor(np.zeros(n_elems // 4, np.float32), requires_grad=True) for _ in range(4)]
        if t.rank < n_servers:
            make = lambda shard: optim.SGD(shard, lr=0.1)  # noqa: E731
            Server(ledger, params, n_servers, SYNC, make).serve()
            ways = [ledger.count(label=f"param_server.{way}") for way in ("pull", "push")]
            return sum(way.bytes_sent + way.bytes_received for way in ways), t.time()
        with Worker(ledger, params, n_servers) as worker:
            worker.pull()
            worker.push()

    ranks = simulate(n_servers + n_workers, body, links=LINKS)[:n_servers]
    return max(n_bytes for n_bytes, _ in ranks), max(time_s for _, time_s in ranks)


def ring_bytes(n, n_elems):
    """Returns (bytes that the busiest rank sends, modelled seconds)."""

    def body(t):
        ledger = Ledger(t)
        ring.all_reduce(ledger, np.zeros(n_elems, np.float32))
        return ledger.bytes_sent, t.time()

    ranks = simulate(n, body, links=LINKS)
    return max(n_bytes for n_bytes, _ in ranks), max(time_s for _, time_s in ranks)


def table_of_bytes(n_elems):
    K, rows = 4 * n_elems, []
    print(f"bytes of a step, K = {K:,}; seconds are modelled")
    print(
        f"{'servers':>7} {'workers':>7} {'server measured':>15} {'2NK/S':>12} {'ok':>4} "
        f"{'ring measured':>14} {'2(N-1)K/N':>12} {'ok':>4} {'server s':>9} {'ring s':>8}"
    )
    for n_servers in (1, 2, 4):
        for n in (1, 2, 4, 8):
            moved, server_s = step_bytes(n_servers, n, n_elems)
            sent, ring_s = ring_bytes(n, n_elems)
            formula, of_ring = 2 * n * K // n_servers, 2 * (n - 1) * K // n
            ok, ring_ok = moved == formula, sent == of_ring
            rows.append(
                dict(servers=n_servers, workers=n, server_bytes=moved, formula=formula, ok=ok)
                | dict(ring_bytes=sent, ring_formula=of_ring, ring_ok=ring_ok)
                | dict(server_modelled_s=server_s, ring_modelled_s=ring_s)
            )
            print(
                f"{n_servers:>7} {n:>7} {moved:>15,} {formula:>12,} {'yes' if ok else 'NO':>4} "
                f"{sent:>14,} {of_ring:>12,} {'yes' if ring_ok else 'NO':>4} "
                f"{server_s:>9.4f} {ring_s:>8.4f}"
            )
    return rows


# -- time to a loss


def train(rule, speeds, seconds, lr=0.2, batch=8):
    """Trains on simulated ranks. Returns [(modelled seconds, loss minus the best loss)], with one
    pair for each update of the weights. speeds: for each worker, the modelled seconds of one
    gradient. seconds: the modelled time of the training."""
    g = minidl.Generator(5)
    x = g.normal(256, 8, dtype=np.float64)
    y = x @ g.normal(8, 1, dtype=np.float64) + g.normal(256, 1, dtype=np.float64)

    def loss(w):
        return float(((x @ w - y) ** 2).mean()) / 2

    least = loss(np.linalg.lstsq(x, y, rcond=None)[0])

    def body(t):
        w = Tensor(np.zeros((8, 1)), requires_grad=True)
        if t.rank == 0:
            curve = []

            def apply_and_look(server):
                before = server.version
                rule.apply(server)
                if server.version > before:
                    curve.append((t.time(), loss(w.array) - least))

            make = None if rule.differences else lambda shard: optim.SGD(shard, lr=lr)
            Server(t, [w], 1, rule._replace(apply=apply_and_look), make).serve()
            return curve
        draw, local = minidl.Generator(t.rank), optim.SGD([w], lr=lr)
        with Worker(t, [w]) as worker:
            while t.time() < seconds:
                worker.pull()
                for _ in range(GEO_STEPS if rule.differences else 1):
                    t.compute(speeds[t.rank - 1])
                    b = draw.integers(0, len(x), batch)
                    w.grad = x[b].T @ (x[b] @ w.array - y[b]) / batch
                    if rule.differences:
                        local.step()
                worker.push_difference() if rule.differences else worker.push()

    return simulate(len(speeds) + 1, body, links=LINKS)[0]


def table_of_times(seconds, excess):
    rows = []
    print(f"\nmodelled seconds until the loss is {excess:g} above the best one; updates until then")
    print(f"{'workers':>16} {'rule':>8} {'seconds':>9} {'updates':>8} {'/ sync':>7}")
    for name, speeds in (("3 equal", [1.0, 1.0, 1.0]), ("one 3 x slower", [1.0, 1.0, 3.0])):
        sync_s = None
        for rule in (SYNC, bounded(3), ASYNC, GEO):
            curve = train(rule, speeds, seconds)
            n = next((i for i, (_, now) in enumerate(curve, start=1) if now <= excess), None)
            time_s = curve[n - 1][0] if n else math.inf
            sync_s = sync_s or time_s
            rows.append(dict(workers=name, rule=rule.name, modelled_s=time_s, updates=n))
            shown = n or "never"
            print(f"{name:>16} {rule.name:>8} {time_s:>9.2f} {shown:>8} {sync_s / time_s:>7.2f}")
    return rows


def main():
    args = options()
    print(heading())
    n_elems = math.ceil(args.elems / 32) * 32  # gives all tensors, chunks and shards equal sizes
    figures = {"n_elems": n_elems, "bytes": table_of_bytes(n_elems),
               "times": table_of_times(args.seconds, args.excess)}
    finish(figures, *report(figures), args.out)


def report(figures):
    """Returns (bars, rows). A bar is a measured number with its goal. A row is a line of the table
    in docs/figures.md."""
    wrong = sum(not f["ok"] or not f["ring_ok"] for f in figures["bytes"])
    found = {(f["workers"], f["rule"]): f for f in figures["times"]}
    slow, even = ({rule: figure for (workers, rule), figure in found.items() if workers == which}
                  for which in ("one 3 x slower", "3 equal"))
    gains = {rule: slow["sync"]["modelled_s"] / figure["modelled_s"]
             for rule, figure in slow.items() if rule != "sync"}
    updates = {rule: even[rule]["updates"] or math.inf for rule in ("sync", "async")}
    exact = bar("byte counts that differ from their formulas", wrong, 0, at_most=True)
    gain = bar("one slow: sync's time to the loss over async's", gains["async"], 2)
    delay = bar("equal workers: async's updates to the loss over sync's",
                updates["async"] / updates["sync"], 1.01)
    return [exact, gain, delay], [
        row("bytes of a step through S servers, N workers, parameters of K bytes", "2 N K / S",
            f"{wrong} differ" if wrong else "equal, to the byte", [exact]),
        row("parameter server, one of 3 workers 3 times slower (modelled): sync's time to a loss",
            "async's", f"{number(gains.pop('async'))} times", [gain]),
        *(row("the same", f"{rule}'s", f"{number(by)} times") for rule, by in gains.items()),
        row("the same with equal workers: async's updates to that loss", "sync's",
            f"{number(delay['figure'])} times", [delay]),
    ]


if __name__ == "__main__":
    main()
