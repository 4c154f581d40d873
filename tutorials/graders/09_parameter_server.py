"""Grades work/09_parameter_server.py.   Test: tests/tutorials/test_exercises.py"""

from types import SimpleNamespace

import numpy as np

from minidl import Tensor, optim
from minidl.comm import simulate
from minidl.exercise_grade import Wrong
from minidl.parallel.param_server import Server
from minidl.parallel.param_worker import Worker

STEPS = 12


def grade_09a(student):
    """nobody is more than s steps ahead, nobody waits without need, and nobody for ever."""
    for speeds, s in [([1, 3, 1], 2), ([1, 1], 0), ([1, 5, 1, 2], 1), ([2, 9, 1], 3)]:
        where = f"{len(speeds)} workers, of which one takes {max(speeds)} times as long, s = {s}"
        server = _serve(student.bounded(s), speeds, where)
        most = max(server.leads.values())
        if most > s:
            raise Wrong(f"{where}: a worker began a step when it was {most} ahead of the slowest")
        if most < s:
            raise Wrong(
                f"{where}: no worker was ever more than {most} ahead; who is exactly s steps ahead "
                "may still pull"
            )
        yield f"{where}: at most {most} ahead, all {STEPS * len(speeds)} pushes came"
    server = _serve(student.bounded(1), [1, 1, 4], "worker 3 leaves early", last_steps=2)
    if max(server.leads.values()) > 1:
        raise Wrong("when a worker leaves early, the others may not run further ahead")
    yield "a worker that leaves early holds up nobody"
    for clocks, s in [((4, 3, 9), 2), ((2, 2, 3), 1), ((6, 5, 5), 2), ((0, 7, 8), 7), ((3,), 0)]:
        clocks = dict(enumerate(clocks, start=1))
        for worker, clock in clocks.items():
            ahead = clock - min(clocks.values())
            if bool(student.may_pull(clocks, worker, s)) != (ahead <= s):
                raise Wrong(
                    f"clocks {clocks}, s = {s}: worker {worker} is {ahead} ahead of the slowest, "
                    f"so it {'may pull' if ahead <= s else 'must wait'}; got the contrary"
                )
    yield "each worker of five given sets of clocks"
    loss = {s: _loss(student.bounded(s)) for s in (2, 1000)}
    if not loss[2] < loss[1000]:
        raise Wrong(f"the loss, {loss[2]:.3g}, is not below the unbounded one, {loss[1000]:.3g}")
    yield f"loss with s = 2: {loss[2]:.2g}; without a bound: {loss[1000]:.2g}"


def _serve(rule, speeds, where, last_steps=STEPS):
    """The server of a run in which worker i takes speeds[i] seconds for a gradient."""
    try:
        return _train(rule, speeds, last_steps)
    except Exception as error:
        if "all workers wait" in str(error):
            raise Wrong(
                f"{where}: in the end all workers wait, and nobody can go on. May the slowest "
                "worker always pull?"
            ) from None
        raise


def _train(rule, speeds, last_steps=STEPS, rate=0.01, steps=STEPS):
    def rank(t):
        x = Tensor(np.ones(1), requires_grad=True)
        if t.rank == 0:
            server = Server(t, [x], 1, rule, lambda shard: optim.SGD(shard, lr=rate))
            server.serve()
            return server
        with Worker(t, [x]) as worker:
            for _ in range(last_steps if t.rank == len(speeds) else steps):
                worker.pull()
                t.compute(speeds[t.rank - 1])
                x.grad = x.data.copy()
                worker.push()

    return simulate(1 + len(speeds), rank)[0]


def _loss(rule):
    """x^2/2 at a rate that is too large for gradients of many updates before."""
    server = _train(rule, [1, 1, 12], 8, rate=0.5, steps=96)
    return float(server.shard.params[0].data[0] ** 2 / 2)


def grade_09b(student):
    """one update a step: the mean over all samples, when all workers that are here have pushed."""
    server = _stub({1, 2, 4})
    student.mean_of_all(server)
    if server.updates:
        raise Wrong("nobody has pushed, and there was an update")
    for worker, n_samples in ((4, 3), (1, 1)):
        server.inbox[worker] = np.full(2, 10.0**worker), n_samples
        student.mean_of_all(server)
        if server.updates:
            raise Wrong("there was an update before all workers had pushed")
    yield "no update before all have pushed"
    server.inbox[2] = np.full(2, 100.0), 4
    student.mean_of_all(server)
    if len(server.updates) != 1:
        raise Wrong(f"all have pushed: wanted one update, got {len(server.updates)}")
    _compare(server.updates[0], (10 + 4 * 100 + 3 * 10_000) / 8, 10_110, 10_110 / 3)
    yield "one update, with the mean weighted by samples"
    if server.inbox:
        raise Wrong("after the update the inbox must be empty, or the next step adds to this one")
    yield "the inbox is empty after it"
    server.inbox[2] = np.ones(2), 1  # and leaves; worker 4 too, without a push
    server.clocks = {1: 5}
    student.mean_of_all(server)
    if len(server.updates) != 1:
        raise Wrong("worker 2 pushed and left, worker 1 has still to push: that is no step yet")
    server.inbox[1] = np.full(2, 3.0), 1
    student.mean_of_all(server)
    if len(server.updates) != 2:
        raise Wrong("all workers that are still here have pushed; those that left must not count")
    _compare(server.updates[1], 2.0, 4.0, 2.0)
    yield "workers that left are not waited for; what they pushed counts"


def _stub(workers):
    server = SimpleNamespace(clocks=dict.fromkeys(workers, 0), inbox={}, updates=[])
    server.update = lambda gradient: server.updates.append(np.array(gradient))
    return server


def _compare(got, mean, total, plain):
    """Raises unless `got` is the weighted mean; total, plain: the sum, the unweighted mean."""
    if got.shape != (2,):
        raise Wrong(f"the update has shape {got.shape}, the gradients (2,)")
    if np.allclose(got, mean):
        return
    if np.allclose(got, total):
        raise Wrong("that is the sum of the gradients; wanted their mean")
    if np.allclose(got, plain):
        raise Wrong("that is the plain mean; a gradient counts as often as it has samples")
    raise Wrong(f"the update is {got[0]:g}, the mean over all samples {mean:g}")


# {exercise: {name of the mistake: (what stands in the region, words of the message that it must
# get)}}
WRONG = {
    "09a": {
        "no bound at all": ("return True", "ahead of the slowest"),
        "less than s": (
            "return clocks[worker] - min(clocks.values()) < s",
            "may still pull",
        ),
        "one step too many": (
            "return clocks[worker] - min(clocks.values()) <= s + 1",
            "ahead of the slowest",
        ),
        "stops the slowest": (
            "return max(clocks.values()) - clocks[worker] <= s",
            "ahead of the slowest",
        ),
        "ahead of the mean": (
            "return clocks[worker] - sum(clocks.values()) / len(clocks) <= s",
            "ahead of the slowest",
        ),
        "a barrier every s steps": (
            "return clocks[worker] == min(clocks.values()) or clocks[worker] % (s + 1) > 0",
            "so it may pull; got the contrary",
        ),
        "only the slowest": (
            "return clocks[worker] == min(clocks.values())",
            "may still pull",
        ),
        "everybody waits": (
            "return clocks[worker] < min(clocks.values())",
            "nobody can go on",
        ),
    },
    "09b": {
        "does not wait": (
            """
for gradient, _ in server.inbox.values():
    server.update(gradient)
server.inbox.clear()
""",
            "before all workers had pushed",
        ),
        "the sum": (
            """
if server.inbox and set(server.clocks) <= set(server.inbox):
    gradients = [gradient for gradient, _ in server.inbox.values()]
    server.inbox.clear()
    server.update(sum(gradients))
""",
            "wanted their mean",
        ),
        "the plain mean": (
            """
if server.inbox and set(server.clocks) <= set(server.inbox):
    gradients = [gradient for gradient, _ in server.inbox.values()]
    server.inbox.clear()
    server.update(sum(gradients) / len(gradients))
""",
            "as often as it has samples",
        ),
        "keeps the inbox": (
            """
if server.inbox and set(server.clocks) <= set(server.inbox):
    total = sum(n for _, n in server.inbox.values())
    server.update(sum(n / total * g for g, n in server.inbox.values()))
""",
            "the inbox must be empty",
        ),
        "waits for those that left": (
            """
if set(server.clocks) == set(server.inbox):
    total = sum(n for _, n in server.inbox.values())
    server.update(sum(n / total * g for g, n in server.inbox.values()))
    server.inbox.clear()
""",
            "those that left must not count",
        ),
        "updates with nothing": (
            """
if set(server.clocks) <= set(server.inbox) or not server.inbox:
    server.update(np.zeros(2))
""",
            "nobody has pushed",
        ),
        "an update each": (
            """
if server.inbox and set(server.clocks) <= set(server.inbox):
    for gradient, _ in server.inbox.values():
        server.update(gradient)
    server.inbox.clear()
""",
            "wanted one update, got 3",
        ),
    },
}
