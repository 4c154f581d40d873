"""Grades work/23_experts.py.   Test: tests/tutorials/test_exercises.py"""

import numpy as np

from minidl.comm import Ledger, simulate
from minidl.course.grade import Wrong

SEED = 0  # `minidl check --student NAME` sets another one for each student

# (tokens of each rank, number of experts)
CASES = [((5,), 2), ((4, 3), 2), ((3, 0, 4), 6), ((2, 6, 1, 5), 4)]
H = 3


def choices(lengths, n_experts, seed=0):
    """Returns the choices of every rank's tokens. Most choose expert 0, and none the last."""
    rng = np.random.default_rng([SEED + seed, len(lengths)])
    p = np.array([3.0, *[1.0] * (n_experts - 2), 0])
    return [rng.choice(n_experts, n, p=p / p.sum()) for n in lengths]


def queued(module, lengths, n_experts, seed):
    """Returns for each rank (places, True if the choices were not changed)."""
    def body(t):
        choice = choices(lengths, n_experts, seed)[t.rank]
        kept = choice.copy()
        return np.array(module.places(t, choice, n_experts)), bool((choice == kept).all())

    return simulate(len(lengths), body)


def grade_23a(student):
    """every token's place among all ranks' tokens of its expert."""
    for lengths, n_experts in CASES:
        for seed in range(3):
            _check_places(lengths, n_experts, seed,
                          student.run(queued, lengths, n_experts, seed))
        yield f"ranks with {', '.join(map(str, lengths))} tokens, {n_experts} experts"


def _check_places(lengths, n_experts, seed, of_ranks):
    chosen = choices(lengths, n_experts, seed)
    following, local = np.zeros(n_experts, int), []
    for rank, (choice, (got, same)) in enumerate(zip(chosen, of_ranks, strict=True)):
        who = f"rank {rank} of {len(lengths)}, choices {choice.tolist()}"
        if not same:
            raise Wrong(f"{who}: the choices were changed. They belong to the caller")
        if got.shape != choice.shape:
            raise Wrong(f"{who}: wanted a place for each token, {choice.shape}; got {got.shape}")
        want = np.zeros(len(choice), int)
        here, ranks_before = np.zeros(n_experts, int), following.copy()
        local = np.zeros(len(choice), int)
        for i, e in enumerate(choice):
            want[i], local[i] = following[e], here[e]
            following[e] += 1
            here[e] += 1
        if (got == want).all():
            continue
        counts = np.array([np.bincount(c, minlength=n_experts) for c in chosen])
        if (got == want + 1).all():
            raise Wrong(f"{who}: places count from 0: the first token of an expert has place 0")
        if (got == local).all():
            raise Wrong(f"{who}: every rank counts from 0. So each expert takes its full "
                        "capacity of tokens from every rank. The tokens of lower ranks come first")
        if (got == ranks_before[choice]).all():
            raise Wrong(f"{who}: tokens of one rank with the same choice have the same place: "
                        "earlier tokens of this rank count, too")
        if (got == local + counts[: rank + 1].sum(axis=0)[choice]).all():
            raise Wrong(f"{who}: own tokens are counted as tokens of lower ranks, too")
        if (got == local + counts[rank + 1 :].sum(axis=0)[choice]).all() or (
                got == local + (counts.sum(axis=0) - counts[rank])[choice]).all():
            raise Wrong(f"{who}: tokens of higher ranks were put first. Only tokens of lower "
                        "ranks come first")
        if (got == local + counts[:rank].sum()).all() or (
                got == np.arange(len(choice)) + counts[:rank].sum()).all():
            raise Wrong(f"{who}: every expert has its own queue. Do not count the tokens of other "
                        "experts")
        raise Wrong(f"{who}: wanted places {want.tolist()}; got {got.tolist()}. The queue of each "
                    "expert is in the order of ranks, then of tokens")


EVEN = [((5,), 2), ((4, 3), 4), ((3, 0, 4), 3), ((2, 6, 1, 5), 8)]


def weights(n_experts):
    return np.random.default_rng(SEED + 7).normal(size=(n_experts, H, H))


def tokens(lengths, n_experts, keep, seed=0):
    """Returns (x, choice, gate, kept) for each rank. keep: the share of tokens that are kept."""
    rng = np.random.default_rng([SEED + seed, 1, len(lengths)])
    return [(rng.normal(size=(len(c), H)), c, rng.uniform(0.2, 0.9, len(c)),
             rng.uniform(size=len(c)) < keep) for c in choices(lengths, n_experts, seed)]


def sent_through(module, lengths, n_experts, keep):
    """Returns for each rank (y, experts called, bytes sent, True if no argument was changed)."""
    def body(t):
        x, choice, gate, kept = tokens(lengths, n_experts, keep)[t.rank]
        before = [a.copy() for a in (x, choice, gate, kept)]
        ledger, called, w = Ledger(t), [], weights(n_experts)

        def expert(e, rows):
            called.append(int(e))
            return np.tanh(rows @ w[int(e)])

        y = module.through_experts(ledger, x, choice, gate, kept, expert, n_experts)
        same = all((a == b).all() for a, b in zip((x, choice, gate, kept), before, strict=True))
        return np.array(y), called, ledger.bytes_sent, same

    return simulate(len(lengths), body)


def grade_23b(student):
    """gate times expert for every kept token, 0 for others, each expert on its own rank."""
    for lengths, n_experts in EVEN:
        for keep in (1.0, 0.6, 0.0):
            _check_through(lengths, n_experts, keep,
                           student.run(sent_through, lengths, n_experts, keep))
        yield f"{len(lengths)} ranks, {n_experts} experts; all kept, some dropped, all dropped"


def _check_through(lengths, n_experts, keep, of_ranks):
    n, w, every = len(lengths), weights(n_experts), tokens(lengths, n_experts, keep)
    of = n_experts // n
    for rank, ((x, choice, gate, kept), (y, called, n_bytes, same)) in enumerate(
            zip(every, of_ranks, strict=True)):
        who = f"rank {rank} of {n}, {n_experts} experts, {len(x)} tokens, {kept.sum()} kept"
        if not same:
            raise Wrong(f"{who}: an argument was changed. All belong to the caller")
        if y.shape != x.shape:
            raise Wrong(f"{who}: wanted y of shape {x.shape}; got {y.shape}")
        through = np.array([np.tanh(row @ w[e]) for row, e in zip(x, choice, strict=True)])
        through = through.reshape(x.shape)
        want = np.where(kept[:, None], gate[:, None] * through, 0)
        if set(called) - set(range(of * rank, of * rank + of)):
            raise Wrong(f"{who}: expert {max(set(called))} was called here, but this rank has "
                        f"experts {of * rank} to {of * rank + of - 1}. Send a row to rank "
                        "choice // (E / n)")
        if len(called) > of:
            raise Wrong(f"{who}: experts were called {len(called)} times. Each expert is called "
                        f"once, with a batch of all its rows: {of} calls at most")
        if not _close(y, want):
            if _close(y[kept], through[kept]):
                raise Wrong(f"{who}: the gates are missing: y is gate times the expert's result")
            if not _close(y[~kept], want[~kept]):
                if _close(y[~kept], x[~kept]) or _close(y[~kept], (gate[:, None] * x)[~kept]):
                    raise Wrong(f"{who}: dropped tokens were passed on. Their y is 0; the residual "
                                "path outside of the layer adds x")
                raise Wrong(f"{who}: a dropped token's y is not 0. Do not send dropped tokens")
            rows = y[kept][:, None, :] == 0
            if rows.all() and kept.any():
                raise Wrong(f"{who}: y is 0 for tokens that were kept. Put the results into y")
            raise Wrong(f"{who}: a token has the result of another token or of another expert. "
                        "Results come back in the order in which the rows were sent, sorted by "
                        "expert: y[order] = ...")
        theirs = [(c[k] // of) for _, c, _, k in every]
        leave = (theirs[rank] != rank).sum()
        come = sum((to == rank).sum() for r, to in enumerate(theirs) if r != rank)
        most = int(leave + come) * 8 * H + int(leave + come) * 8 + 5 * 8 * (n - 1)
        if n_bytes > most:
            raise Wrong(f"{who} sent {n_bytes:,} bytes. Rows, results, numbers of experts and "
                        f"counts have at most {most:,} bytes: send to each rank only the rows of "
                        "its experts")


def _close(a, b):
    return np.allclose(a, b, rtol=1e-12, atol=1e-13)  # float64, sums of three terms


WRONG = {
    "23a": {
        "capacity per rank": ({"counts[: t.rank].sum(axis=0)": "np.zeros(n_experts, np.int64)"},
                              "every rank counts from 0"),
        "the own ones before": ({"counts[: t.rank].sum": "counts[: t.rank + 1].sum"},
                                "own tokens are counted as"),
        "all other ranks before": (
            {"counts[: t.rank].sum(axis=0)": "counts.sum(axis=0) - counts[t.rank]"},
            "Only tokens of lower ranks"),
        "from 1": ({"result[i] = following[e]\n    following[e] += 1\n":
                    "following[e] += 1\n    result[i] = following[e]\n"}, "count from 0"),
        "one queue for all": ({"following[e] += 1\n": "following += 1\n"},
                              "Do not count the tokens of other experts"),
        "nobody moves on": ({"    following[e] += 1\n": ""}, "have the same place"),
    },
    "23b": {
        "gate not applied": ({"gate[order, None] * back": "back"}, "the gates are missing"),
        "dropped tokens passed on": ({"np.zeros_like(x)": "x.copy()"}, "passed on"),
        "dropped ones are sent, too": ({"order = np.flatnonzero(kept)\n":
                                        "order = np.arange(len(x))\n"}, "is not 0"),
        "not sorted": (
            {"order = order[np.argsort(choice[order], kind=\"stable\")]\n": ""},
            "was called here"),
        "results in the order of tokens": ({"y[order] = gate[order, None] * back":
                                            "y[kept] = gate[kept, None] * back"},
                                           "the result of another token"),
        "row by row": (
            {"for e in np.unique(which):\n    results[which == e] = expert(e, rows[which == e])":
             "for i, e in enumerate(which):\n    results[i] = expert(e, rows[i : i + 1])[0]"},
            "is called once"),
    },
}
