"""Grades work/10_parameter_server.py.   Test: tests/tutorials/test_exercises.py"""

from types import SimpleNamespace

import numpy as np

from minidl import Tensor, optim
from minidl.comm import simulate
from minidl.course.grade import Wrong
from minidl.parallel.server.server import Server
from minidl.parallel.server.worker import Worker

STEPS = 12


def served(module, s, speeds, last_steps=STEPS, rate=0.01, steps=STEPS):
    """Runs the student's rule on x^2/2, from x = 1. Worker i takes speeds[i] seconds a gradient.

    Returns ({lead: how often}, the weight). A lead is how many steps a worker was ahead of the
    slowest worker when it began a step. Returns None if all workers wait for ever."""
    rule = module.bounded(s)

    def rank(t):
        x = Tensor(np.ones(1), requires_grad=True)
        if t.rank == 0:
            server = Server(t, [x], 1, rule, lambda shard: optim.SGD(shard, lr=rate))
            server.serve()
            return dict(server.leads), float(server.shard.params[0].array[0])
        with Worker(t, [x]) as worker:
            for _ in range(last_steps if t.rank == len(speeds) else steps):
                worker.pull()
                t.compute(speeds[t.rank - 1])
                x.grad = x.array.copy()
                worker.push()

    try:
        return simulate(1 + len(speeds), rank)[0]
    except Exception as error:
        if "all workers wait" in str(error):
            return None
        raise


def may_pull(module, clocks, s):
    try:
        return {worker: bool(module.may_pull(clocks, worker, s)) for worker in clocks}
    except ValueError as error:  # min() or max() of an empty sequence
        raise Wrong(f"clocks {clocks}: {error}. Take the slowest of all workers, also of the "
                    "worker that asks: it may be the only one") from None


CLOCKS = [
    ((4, 3, 9), 2), ((2, 2, 3), 1), ((6, 5, 5), 2), ((0, 7, 8), 7), ((3,), 0), ((5, 1), 4),
    ((8, 0, 8), 4)]
MISTAKES = {  # {hint: the wrong rule}
    "Every worker may always pull. Is its lead the distance to the slowest, not to the fastest?":
        lambda mine, all_, s: True,
    "Exactly s steps ahead may still pull: <=": lambda mine, all_, s: mine - min(all_) < s,
    "s steps ahead, not s + 1": lambda mine, all_, s: mine - min(all_) <= s + 1,
    "That is how far it is behind the fastest": lambda mine, all_, s: max(all_) - mine <= s,
    "That is the distance to the mean. Take the distance to the slowest":
        lambda mine, all_, s: mine - sum(all_) / len(all_) <= s,
    "That bounds the number of steps. Bound the lead":
        lambda mine, all_, s: mine <= s,
}


def _mistake(rules, answers):
    """Returns the hint for the mistake that gives exactly these answers, if it is a known one."""
    for name, rule in MISTAKES.items():
        if answers == [{w: rule(c, clocks.values(), s) for w, c in clocks.items()}
                       for clocks, s in rules]:
            return name
    return "Its lead is the number of its pushes minus the number of the slowest worker's pushes"


def grade_10a(student):
    """no worker is more than s steps ahead; none waits without need; none waits for ever."""
    rules = [(dict(enumerate(clocks, start=1)), s) for clocks, s in CLOCKS]
    answers = [student.run(may_pull, clocks, s) for clocks, s in rules]
    for (clocks, s), got in zip(rules, answers, strict=True):
        for worker, may in got.items():
            ahead = clocks[worker] - min(clocks.values())
            if may != (ahead <= s):
                raise Wrong(f"clocks {clocks}, s = {s}: worker {worker} is {ahead} ahead of the "
                            f"slowest, so it {'may pull' if ahead <= s else 'must wait'}; got the "
                            f"opposite. {_mistake(rules, answers)}")
    yield "each worker of seven given sets of clocks"
    for speeds, s in [([1, 3, 1], 2), ([1, 1], 0), ([1, 5, 1, 2], 1), ([2, 9, 1], 3)]:
        where = f"{len(speeds)} workers, one takes {max(speeds)} times as long, s = {s}"
        most = _most(student, s, speeds, where)
        if most > s:
            raise Wrong(f"{where}: a worker began a step when it was {most} ahead of the slowest")
        if most < s:
            raise Wrong(f"{where}: no worker was ever more than {most} ahead. A worker that is "
                        "exactly s steps ahead may still pull")
        yield f"{where}: at most {most} ahead, all {STEPS * len(speeds)} pushes came"
    if _most(student, 1, [1, 1, 4], "worker 3 leaves early", 2) > 1:
        raise Wrong("when a worker leaves early, the others must not run further ahead")
    yield "a worker that leaves early blocks no other worker"
    # The rate is too large for gradients that are many updates old.
    weight = {s: student.run(served, s, [1, 1, 12], 8, 0.5, 96) for s in (2, 1000)}
    loss = {s: run[1] ** 2 / 2 for s, run in weight.items()}
    if not loss[2] < loss[1000]:
        raise Wrong(f"with s = 2 the loss is {loss[2]:.3g}. It should be below the loss without a "
                    f"bound, {loss[1000]:.3g}")
    yield f"loss with s = 2: {loss[2]:.2g}; without a bound: {loss[1000]:.2g}"


def _most(student, s, speeds, where, last_steps=STEPS):
    """Returns the largest lead that a worker had when it began a step."""
    run = student.run(served, s, speeds, last_steps)
    if run is None:
        raise Wrong(f"{where}: in the end all workers wait, and none can go on. May the slowest "
                    "worker always pull?")
    return max(run[0].values())


def updates(module, events):
    """Returns a list with a pair for each event: (gradients of the updates that it made, workers in
    the inbox).

    An event is ("here", workers) or ("push", worker, gradient, n_samples)."""
    server = SimpleNamespace(clocks={}, inbox={})
    after = []
    for kind, *what in events:
        if kind == "here":
            server.clocks = dict.fromkeys(what[0], 5)
        else:
            server.inbox[what[0]] = np.full(2, what[1]), what[2]
        made = []
        server.update = lambda gradient, made=made: made.append(np.array(gradient))
        module.mean_of_all(server)
        after.append((made, sorted(server.inbox)))
    return after


def grade_10b(student):
    """one update a step, the mean over all samples, when all workers that are here have pushed."""
    events = [("here", [1, 2, 4]), ("push", 4, 1e4, 3), ("push", 1, 10.0, 1),
              ("push", 2, 100.0, 4)]
    first, *early, last = student.run(updates, events)
    if first[0]:
        raise Wrong("there was an update, but no worker has pushed")
    if any(made for made, _ in early):
        raise Wrong("there was an update before all workers had pushed")
    yield "no update before all have pushed"
    _one_update(last[0], (10 + 4 * 100 + 3 * 10_000) / 8, 10_110, 10_110 / 3)
    yield "one update, with the mean weighted by samples"
    if last[1]:
        raise Wrong("after the update the inbox must be empty. Else the next step adds to this one")
    yield "the inbox is empty after the update"
    # The sum over 5 samples is 2^80 - 2^80 + 3. In another order the 3 is lost by rounding.
    events = [("here", [9, 2, 5]), ("push", 9, 3.0, 1), ("push", 5, -2.0**80, 2),
              ("push", 2, 2.0**80, 2)]
    *_, last = student.run(updates, events)
    if len(last[0]) != 1 or not np.allclose(last[0][0], 3 / 5):
        raise Wrong("a sum in another order rounds differently. Add in the order of the workers' "
                    "numbers, not in the order of their pushes, so that every run has the same "
                    "bits")
    yield "the order of the workers' numbers, for any order of pushes"
    # Worker 2 pushes and leaves. Worker 4 leaves without a push. Worker 1 has not pushed yet.
    events = [("push", 2, 1.0, 1), ("here", [1]), ("push", 1, 3.0, 1)]
    *early, last = student.run(updates, [("here", [1, 2, 4]), *events])
    if any(made for made, _ in early):
        raise Wrong("worker 2 pushed and left, worker 1 has not pushed yet: wait for it")
    if not last[0]:
        raise Wrong("all workers that are still here have pushed. Do not wait for those that left")
    if len(last[0]) == 1 and np.allclose(last[0][0], 3.0):
        raise Wrong("the update has only the push of worker 1. Worker 2 pushed, and left after "
                    "that: its push still counts")
    _one_update(last[0], 2.0, 4.0, 2.0)
    yield "no waiting for workers that left; their pushes count"
    if student.run(left_by_all):
        raise Wrong("all workers have left, and none has pushed since the last step. The inbox is "
                    "empty, so do not update: the mean of no gradients is 0 / 0")
    yield "no update when all have left and nothing was pushed"


def left_by_all(module):
    """Returns True if an empty inbox makes an update or an error when all workers have left."""
    with np.errstate(all="ignore"):
        try:
            return bool(updates(module, [("here", [])])[0][0])
        except (ArithmeticError, ValueError, IndexError):
            return True


def _one_update(made, mean, total, plain):
    """Raises Wrong unless `made` is one update with the weighted mean.

    total and plain are wrong results: the sum, the unweighted mean."""
    if len(made) != 1:
        raise Wrong(f"all have pushed: wanted one update, got {len(made)}")
    (got,) = made
    if got.shape != (2,):
        raise Wrong(f"the update has shape {got.shape}, the gradients have shape (2,)")
    if np.allclose(got, mean):
        return
    if np.allclose(got, total):
        raise Wrong("that is the sum of the gradients. Update with their mean")
    if np.allclose(got, plain):
        raise Wrong("that is the plain mean. Weight each gradient by its number of samples")
    raise Wrong(f"the update is {got[0]:g}, but the mean over all samples is {mean:g}: the sum "
                "of n_samples * gradient, divided by the sum of n_samples")


# {exercise: {name of the mistake: (the code of the region, words that its message must have)}}
WRONG = {
    "10a": {
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
            "so it may pull; got the opposite",
        ),
        "only the slowest": (
            "return clocks[worker] == min(clocks.values())",
            "Its lead is the number of its pushes",
        ),
        "every worker waits": (
            "return clocks[worker] < min(clocks.values())",
            "Its lead is the number of its pushes",
        ),
    },
    "10b": {
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
            "Update with their mean",
        ),
        "the plain mean": (
            """
if server.inbox and set(server.clocks) <= set(server.inbox):
    gradients = [gradient for gradient, _ in server.inbox.values()]
    server.inbox.clear()
    server.update(sum(gradients) / len(gradients))
""",
            "by its number of samples",
        ),
        "in the order in which they pushed": (
            """
if server.inbox and set(server.clocks) <= set(server.inbox):
    total = sum(n for _, n in server.inbox.values())
    mean = sum(n * g for g, n in server.inbox.values()) / total
    server.inbox.clear()
    server.update(mean)
""",
            "in the order of the workers' numbers",
        ),
        "the last number first": (
            """
if server.inbox and set(server.clocks) <= set(server.inbox):
    pushes = [server.inbox[worker] for worker in sorted(server.inbox, reverse=True)]
    server.inbox.clear()
    server.update(sum(n * g for g, n in pushes) / sum(n for _, n in pushes))
""",
            "in the order of the workers' numbers",
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
    pushes = [server.inbox[worker] for worker in sorted(server.inbox)]
    total = sum(n for _, n in pushes)
    server.update(sum(n / total * g for g, n in pushes))
    server.inbox.clear()
""",
            "Do not wait for those that left",
        ),
        "updates with nothing": (
            """
if set(server.clocks) <= set(server.inbox) or not server.inbox:
    server.update(np.zeros(2))
""",
            "no worker has pushed",
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
