"""Grades work/16_dgc.py.   Test: tests/tutorials/test_exercises.py"""

import numpy as np

from minidl.comm import Ledger, ring, simulate
from minidl.course.grade import Wrong

SEED = 0  # another one for each student: check --student NAME

SIZES = [(10, 1), (11, 4), (1000, 30), (7, 7)]  # elements, how many of them are sent
MOMENTA = (0.5, 0.0)
N_STEPS = 5


def personal(draw):
    """Returns SIZES with one more case, drawn for this student."""
    n = int(draw.integers(20, 900))
    return {"SIZES": [*SIZES, (n, int(draw.integers(2, n // 2)))]}


def gradients(n, step):
    """Returns whole numbers, so that no sum is rounded. They have different magnitudes, so sums
    that are equal in one step usually differ in the next step."""
    rng = np.random.default_rng([SEED + n, step])
    return rng.permutation(n) * 8.0 * rng.choice([-1, 1], n) + 1 + step


def selected(module, n, k, m):
    """Returns for each step (indices, values, u, v, True if g was not changed)."""
    u, v, steps = np.zeros(n), np.zeros(n), []
    for step in range(N_STEPS):
        g = gradients(n, step)
        kept = g.copy()
        index, value = module.select(u, v, g, k, m)
        steps.append((np.array(index), np.array(value, float), u.copy(), v.copy(),
                      bool((g == kept).all())))
    return steps


def grade_16a(student):
    """the k largest are sent, nothing is lost, and what was sent has no momentum left."""
    for n, k in SIZES:
        for m in MOMENTA:
            _check_select(n, k, m, student.run(selected, n, k, m))
        yield f"{n} elements, {k} sent, {N_STEPS} steps: values, velocities, what waits"


def _check_select(n, k, m, steps):
    u, v = np.zeros(n), np.zeros(n)
    for step, (index, value, u_got, v_got, untouched) in enumerate(steps):
        who = f"{n} elements, k = {k}, momentum {m}, step {step}"
        g = gradients(n, step)
        u_plain, v_late = m * u + g, v + g
        u = m * u + g
        v = v + u
        total = v.copy()
        if not untouched:
            raise Wrong(f"{who}: g was changed. It belongs to the caller: change only u and v")
        if index.shape != (k,) or value.shape != (k,) or len(set(index.tolist())) != k:
            raise Wrong(f"{who}: wanted {k} different indices and {k} values; got arrays of "
                        f"shape {index.shape} and {value.shape}")
        if (v_got == total).all() and (value == total[index]).all():
            raise Wrong(f"{who}: v still holds the elements that were sent, which would be sent "
                        "again")
        in_place = f"{who}: {{}}. Change the caller's arrays in place, by u *= m; u += g; v += u"
        if not u_got.any() and not v_got.any() and k < n:
            raise Wrong(in_place.format("u and v are still zeros"))
        if not u_got.any() and u_plain.any() and k < n:
            raise Wrong(in_place.format("u is still zero"))
        if (value == 0).all() and total[index].any():
            raise Wrong(f"{who}: the values are zeros. They were read from v after it was cleared")
        arrived = np.zeros(n)
        arrived[index] = value
        if (arrived + v_got == v_late).all() and (v_late != total).any():
            raise Wrong(f"{who}: v grows by the gradient. Momentum correction adds the velocity: "
                        "u = m u + g, then v = v + u")
        if not (arrived + v_got == total).all():
            at = int(np.flatnonzero(arrived + v_got != total)[0])
            raise Wrong(f"{who}: element {at}: {arrived[at]:g} was sent and {v_got[at]:g} waits, "
                        f"but {total[at]:g} has been accumulated. u = m u + g, v = v + u, and "
                        "v becomes 0 where it was sent, nowhere else")
        if np.abs(value).min() < np.abs(np.delete(total, index)).max(initial=0):
            raise Wrong(f"{who}: an element that waits is larger in magnitude than one that was "
                        "sent. Choose by |v|, after the velocity was added")
        u[index], v[index] = 0, 0
        if (u_got == u_plain).all() and m and (u_plain != u).any():
            raise Wrong(f"{who}: u still has the velocity of elements that were sent, which would "
                        "push them again. Momentum factor masking clears u there, too")
        if m and not (u_got == u).all():
            raise Wrong(f"{who}: u is not m u + g with zeros where elements were sent")


SHAPES = [(8, 5, 1), (6, 9, 2), (12, 12, 3)]
WORLDS = (1, 2, 3)


def lowered(module, p, n, m, r):
    """Returns for each rank and each of two steps (update, residual, next q, bytes sent)."""
    def body(t):
        ledger, steps = Ledger(t), []
        residual, q = np.zeros((n, m)), np.random.default_rng(SEED + 1).normal(size=(m, r))
        for step in range(2):
            g = gradient(t.rank, step, n, m)
            ledger.reset()
            update, q = module.low_rank(ledger, g, residual, q)
            steps.append((np.array(update), residual.copy(), np.array(q), ledger.bytes_sent))
        return steps

    return simulate(p, body)


def gradient(rank, step, n, m):
    return np.random.default_rng([SEED + rank, step, n]).normal(size=(n, m))


def grade_16b(student):
    """the update is the sum's part along P, every rank keeps its own residual, bytes r (n + m)."""
    for n, m, r in SHAPES:
        for p in WORLDS:
            _check_low_rank(p, n, m, r, student.run(lowered, p, n, m, r))
        yield f"{n} x {m}, rank {r}, 1 to 3 ranks: updates, residuals, bytes"


def _check_low_rank(p, n, m, r, of_ranks):
    owed, q = np.zeros((p, n, m)), np.random.default_rng(SEED + 1).normal(size=(m, r))
    for step in range(2):
        a = np.array([gradient(rank, step, n, m) for rank in range(p)]) + owed
        left = np.linalg.qr(a.sum(0) @ np.linalg.qr(q)[0])[0]
        raw = a.sum(0) @ np.linalg.qr(q)[0]
        own = [x.T @ left for x in a]
        q, update = sum(own), left @ sum(own).T
        plain = np.array([gradient(rank, step, n, m) for rank in range(p)])
        for rank in range(p):
            who = f"rank {rank} of {p}, {n} x {m}, r = {r}, step {step}"
            got, rest, q_got, n_bytes = of_ranks[rank][step]
            if got.shape != (n, m) or q_got.shape != (m, r):
                raise Wrong(f"{who}: wanted an update of shape {(n, m)} and a q of shape {(m, r)}; "
                            f"got {got.shape} and {q_got.shape}")
            formula = sum(ring.bytes_sent(r * side, 8, p, rank) for side in (n, m))
            if n_bytes != formula:
                raise Wrong(f"{who} sent {n_bytes:,} bytes. Wanted {formula:,}: all-reduces of P "
                            "and of A'P, r (n + m) numbers")
            if not _close(got, update):
                if step and _close(got, _projected(plain.sum(0), of_ranks[0][0][2])):
                    raise Wrong(f"{who}: the residual is not in the update: A = g + residual")
                if _close(got, raw @ (a.sum(0).T @ raw).T):
                    raise Wrong(f"{who}: P's columns are not orthonormal. After the sum, use "
                                "np.linalg.qr(p)[0]")
                if p > 1 and _close(got, update / p):
                    raise Wrong(f"{who}: the update is the mean over the ranks; wanted the sum")
                raise Wrong(f"{who}: the update is wrong. P is the sum of A q over the ranks, made "
                            "orthonormal after the sum. The update is P (sum of A'P)'")
            if not _close(rest, a[rank] - left @ own[rank].T):
                if _close(rest, a[rank] - update) or _close(rest, a[rank] - update / p):
                    raise Wrong(f"{who}: the residual is A minus the common update. If the ranks "
                                "have different data it grows for ever. It should be a - p (A'P)' "
                                "with this rank's own A'P, from before the sum")
                raise Wrong(f"{who}: the residual is not A - P (A'P)', or was not changed in "
                            "place. sent + residuals must equal the sum of the gradients")
            if not _close(q_got @ q_got.T, q @ q.T):  # equal for every orthonormal basis P
                raise Wrong(f"{who}: the next q is not the sum of A'P over the ranks")
        owed = a - np.array([left @ x.T for x in own])


def _projected(total, q):
    left = np.linalg.qr(total @ np.linalg.qr(q)[0])[0]
    return left @ left.T @ total


def _close(a, b):
    return np.allclose(a, b, rtol=1e-9, atol=1e-9)  # float64, and another order of sums


# Lines of the solutions.
CLEAR_U = "u[index] = 0\n"
OWN = "own = a.T @ p\n"

WRONG = {
    "16a": {
        "only v is cleared": ({CLEAR_U: ""}, "Momentum factor masking clears u there, too"),
        "u is a new array": ({"u *= m\nu += g\n": "u = m * u + g\n"}, "u is still zero"),
        "v is not cleared": ({"v[index] = 0\n": ""}, "would be sent again"),
        "no momentum correction": ({"v += u\n": "v += g\n"}, "v grows by the gradient"),
        "the largest, not the largest in magnitude": (
            {"np.argpartition(-np.abs(v), k - 1)[:k]": "np.argsort(v)[-k:]"}, "by |v|"),
        "values read too late": (
            {"value = v[index]\n": "", "v[index] = 0\n": "v[index] = 0\nvalue = v[index]\n"},
            "after it was cleared"),
        "everything is cleared": ({"v[index] = 0\n": "v[:] = 0\n"}, "nowhere else"),
    },
    "16b": {
        "no error feedback": ({"a = g + residual\n": "a = g\n"}, "A = g + residual"),
        "P as it is": ({"p = np.linalg.qr(p)[0]\n": ""}, "P's columns are not orthonormal"),
        "the residual of the mean": (
            {"residual[...] = a - p @ own.T\n": "",
             "return p @ total.T, total": "residual[...] = a - p @ total.T\n"
                                          "return p @ total.T, total"},
            "it grows for ever"),
        "P is not summed": ({"ring.all_reduce(t, p)\n": ""}, "all-reduces of P and of A'P"),
        "the whole matrix travels": (
            {"total = ring.all_reduce(t, own.copy())\n":
             "whole = ring.all_reduce(t, a.copy())\ntotal = whole.T @ p\n"},
            "all-reduces of P and of A'P"),
        "the old q goes on": ({"return p @ total.T, total": "return p @ total.T, q"},
                              "the next q is not the sum"),
    },
}
