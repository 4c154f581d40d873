"""Grades work/12_offload.py.   Test: tests/tutorials/test_exercises.py"""

import numpy as np

from minidl.course.grade import Wrong
from minidl.parallel.zero.lanes import Modelled

SEED = 0  # `minidl check --student NAME` sets another one for each student

# (sizes of the buckets, seconds of backward for each, seconds to update an element)
CASES = [([7], 1e-4, 1e-8), ([5, 1, 13], 1e-4, 1e-6), ([64, 33, 64, 2, 31], 1e-5, 4e-6)]
STEPS = 4
LINK = (1e-6, 1e-7)


def run(module, case):
    """Runs a case. Returns (weights after each step, ends of the steps, {lane: bytes}, spans,
    seconds of host work during device work, seconds of host work)."""
    sizes, backward_s, update_s = CASES[case]
    lanes = Modelled(LINK, update_s)
    weights = _start(sizes)
    host = module.HostAdam(weights, lanes)
    after, marks = [], []
    for step in range(STEPS):
        for i in reversed(range(len(sizes))):
            lanes.compute(backward_s, f"{step}")
            host.ready(i, _gradient(step, sizes, i))
        host.delayed_step()
        marks.append(lanes.time())
        after.append([w.copy() for w in weights])
    return (after, marks, dict(lanes.bytes), [tuple(span) for span in lanes.spans],
            lanes.overlap("device", "host"), lanes.busy("host"))


def grade_12a(student):
    """delayed_step sends up the weights of the last update, and starts the next update."""
    for case, (sizes, backward_s, update_s) in enumerate(CASES):
        after, marks, n_bytes, spans, beside, busy = student.run(run, case)
        _check_weights(after, sizes)
        yield f"{len(sizes)} buckets, {STEPS} steps: the weights equal a delayed Adam's"
        _check_bytes(n_bytes, sizes)
        yield f"{len(sizes)} buckets: {STEPS} times down, {STEPS - 1} times up"
        _check_trace(spans, marks, len(sizes))
        if update_s * sum(sizes) < backward_s:
            _check_beside(beside, busy)
        yield f"{len(sizes)} buckets: the order of copies, updates and waits"


def _gradient(step, sizes, i):
    return np.random.default_rng([SEED + step, i]).normal(size=sizes[i]).astype(np.float16)


def _start(sizes):
    return [np.linspace(-1, 1, n).astype(np.float16) for n in sizes]


def _check_weights(after, sizes):
    """Compares the student's run with the definition, step by step."""
    wanted = _delayed_adam(sizes)
    for step, weights in enumerate(after):
        for i, (got, should) in enumerate(zip(weights, wanted[step], strict=True)):
            if step == 0 and (got != should).any():
                raise Wrong(
                    f"bucket {i}: the first delayed step changed the device's weights. No update "
                    "came before it, so it must send nothing up"
                )
            if (got != should).any():
                newer = step + 1 < STEPS and (got == wanted[step + 1][i]).all()
                raise Wrong(
                    f"bucket {i}, step {step}: the weights differ from Adam's with the "
                    f"gradients of step {step - 1}: element {int((got != should).argmax())} is "
                    f"{got[(got != should).argmax()]}, wanted {should[(got != should).argmax()]}"
                    + (". They already have this step's update. Is the copy up done before the "
                       "next update overwrites its source?" if newer else "")
                )


def _delayed_adam(sizes):
    """Returns [weights on the device after each step]. They come from Adam, and are one update
    old."""
    device, master = _start(sizes), [w.astype(np.float32) for w in _start(sizes)]
    m, v = [np.zeros(n, "f4") for n in sizes], [np.zeros(n, "f4") for n in sizes]
    history = []
    for step in range(STEPS):
        device = [w.astype(np.float16) for w in master]
        history.append(device)
        for i in range(len(sizes)):
            g = _gradient(step, sizes, i).astype(np.float32)
            m[i] = 0.9 * m[i] + 0.1 * g
            v[i] = 0.999 * v[i] + 0.001 * g * g
            m_hat, v_hat = m[i] / (1 - 0.9 ** (step + 1)), v[i] / (1 - 0.999 ** (step + 1))
            master[i] = master[i] - 0.01 * m_hat / (np.sqrt(v_hat) + 1e-8)
    return history


def _check_bytes(moved, sizes):
    formula = {"down": STEPS * 2 * sum(sizes), "up": (STEPS - 1) * 2 * sum(sizes)}
    for lane, n_bytes in formula.items():
        if moved.get(lane, 0) != n_bytes:
            raise Wrong(f"{moved.get(lane, 0):,} bytes went {lane} in {STEPS} steps; the formula "
                        f"says {n_bytes:,}: 2 bytes for each parameter in each step, and none "
                        "up in the first step")


def _check_trace(all_spans, marks, n):
    """Checks the spans: raises Wrong if two jobs overlap that must not overlap."""
    spans = {lane: [s for s in all_spans if s[0] == lane] for lane in ("up", "host", "down")}
    by_bucket = {lane: {} for lane in spans}
    for lane, rows in spans.items():
        for _, label, start, end in rows:
            by_bucket[lane].setdefault(label, []).append((start, end))
    slack = 1e-12  # the clock adds floats, so its times are rounded
    for i in range(n):
        updates, ups, downs = (by_bucket[lane].get(f"{i}", []) for lane in ("host", "up", "down"))
        for k, (start, end) in enumerate(ups):
            if start < updates[k][1] - slack:
                raise Wrong(f"bucket {i}: its weights went up before the end of the update that "
                            f"began in step {k}. In send_up(i, after), put that update's job in "
                            "after")
            if k + 1 < len(updates) and updates[k + 1][0] < end - slack:
                raise Wrong(f"bucket {i}: the update of step {k + 1} overwrote the weights while "
                            "they were on their way up. It must come after the copy")
            if end > marks[k + 1] + slack:
                raise Wrong(f"bucket {i}: the device began step {k + 2} before the bucket's "
                            "weights arrived. Does it wait for the copies up?")
        for k, (start, _) in enumerate(updates):
            if start < downs[k][1] + LINK[0] - slack:
                raise Wrong(f"bucket {i}: the update of step {k} began before its gradient was "
                            "down. It must come after self.down[i]")
    for lane, what in (("up", "weights went up"), ("host", "updates were begun")):
        order = [int(label) for _, label, _, _ in sorted(spans[lane], key=lambda s: s[2])]
        for step, first in enumerate(range(0, len(order), n)):
            if order[first : first + n] != list(range(n))[::-1]:
                raise Wrong(f"step {step + 1 + (lane == 'up')}: {what} in the order of buckets "
                            f"{order[first : first + n]}. Start with the last bucket: its gradient "
                            "comes first. The gradient of the first bucket comes last")


def _check_beside(beside, busy):
    updates = busy * (STEPS - 1) / STEPS  # no backward follows the last update
    if beside < 0.9 * updates:
        raise Wrong(f"only {beside / updates:.0%} of the updates ran during backward. All updates "
                    "except the last can do so. Does the device wait for more than the weights?")


# {exercise: {name of the mistake: (the code of the region, words that its message must have)}}
WRONG = {
    "12a": {
        "updates in the step": (
            """
self.step()
""",
            "the first delayed step changed",
        ),
        "updates before it sends up": (
            """
coming = []
for i in reversed(range(len(self.weights))):
    old, self.updated[i] = self.updated[i], self.update(i, [self.down[i]])
    if old is not None:
        coming.append(self.send_up(i, [old]))
self.lanes.wait(coming)
""",
            "They already have this step's update",
        ),
        "does not wait": (
            {"self.lanes.wait(coming)\n": ""},
            "weights arrived",
        ),
        "waits for the update too": (
            {"self.lanes.wait(coming)": "self.lanes.wait(coming + self.updated)"},
            "wait for more than the weights",
        ),
        "does not wait for the gradient": (
            {"after = [self.down[i]]": "after = []"},
            "before its gradient was down",
        ),
        "overwrites what is on its way up": (
            {"        after.append(coming[-1])\n": ""},
            "while they were on their way up",
        ),
        "sends up what is not updated yet": (
            {"self.send_up(i, [self.updated[i]])": "self.send_up(i, [])"},
            "began in step",
        ),
    },
}
