"""Prints a planner's result: a table of plans, and the reasons why the first plan wins and the
others lose.

All sentences follow from the plans' numbers. The text compares each plan that loses with the
winner. It names the part of the step in which the plan loses the most seconds. The text also
explains the winner's size of each axis. For this it compares the winner with the plans that
have the next smaller and the next larger size. Every sentence goes through `tr`, which may
translate the sentence (course/language.py).

Test: tests/parallel/model/test_planner.py   Used by: cli/plan.py
"""

from minidl.parallel.model import plan_step
from minidl.parallel.model.plan_network import Network
from minidl.text import padded, width

AXES = "tp", "pp", "cp", "ep"
REASONS = {
    "compute": "its slowest stage computes longer", "bubble": "a larger bubble",
    "sends": "sends from stage to stage for which ranks wait",
    "tied": "the first and the last stage sum the gradient of the weight that they share",
    "tp": "all-reduces of activations", "dp": "all-reduces of gradients",
    "ep": "tokens to experts and back", "ring": "keys and values that attention waits for",
    "ulysses": "all-to-alls of attention"}


def text(task, found, rows=None, tr=str):
    """Returns text. First comes a table of the first `rows` Plans in the list `found`. The last
    column tells why a Plan loses. If the first Plan fits into memory, the reason why it wins
    follows at the end. The table has a column for cp only if cp is above 1 in some plan. The same
    is true for ep."""
    also = [axis for axis in ("cp", "ep") if any(getattr(plan, axis) > 1 for plan in found)]
    head = ["dp", "pp", "tp", *also, "rows x m", "schedule", "memory", "sent: tp", *also, "pp",
            "dp", "bubble", "step", ""]
    lines = _columns([list(map(tr, head)), *(_row(task, plan, found[0], also, tr)
                                             for plan in found[:rows])])
    if left := len(found) - len(found[:rows]):
        lines.append(tr(f"... and {left} more"))
    lines.append(tr("memory: held by the fullest rank; sent: by a rank of the busiest stage in a "
                    "step; bubble: the fraction of time in which the slowest stage waits for "
                    "others"))
    if "cp" in also:
        lines.append(tr("cp: ranks that share a text; r: by ring attention, u: by Ulysses"))
    if task.shape.experts:
        lines.append(tr("experts: assumes tokens routed evenly and none dropped; tp is 1"))
    if task.zero and any(plan.pp > 1 for plan in found):
        lines.append(tr("pp above 1 with ZeRO: the output layer has its own weight, nn.GPT("
                        "tied=False), because two stages cannot share a weight that ZeRO cuts"))
    if found[0].memory <= task.memory:
        lines += ["", why(task, found, tr)]
    return "\n".join(lines)


def _row(task, plan, best, also, tr):
    schedule, fits = plan.schedule if plan.pp > 1 else "-", plan.memory <= task.memory
    shared = {"cp": f"{plan.cp}{plan.method[:1]}", "ep": str(plan.ep)}
    return [*map(str, (plan.dp, plan.pp, plan.tp)), *(shared[axis] for axis in also),
            f"{plan.micro} x {plan.m}", schedule + (f", v {plan.v}" if plan.v > 1 else ""),
            bytes_text(plan.memory), *(bytes_text(plan.sent[axis]) for axis in ("tp", *also)),
            bytes_text(plan.sent["pp"] + plan.sent["tied"]), bytes_text(plan.sent["dp"]),
            f"{100 * plan.bubble:.1f}%", _seconds_text(plan.time_s),
            tr("wins") if plan is best and fits else tr(why_not(task, plan, best))]


def _columns(rows):
    """Returns a list of lines of text, one for each row of the table `rows`. All columns are
    aligned to the right, except the schedule and the last column."""
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    schedule, lines = next(i for i, cell in enumerate(rows[-1]) if " x " in cell) + 1, []
    for row in rows:
        sides = ["<" if i in (schedule, len(row) - 1) else ">" for i in range(len(row))]
        lines.append("  ".join(map(padded, row, widths, sides)).rstrip())
    return lines


def why_not(task, plan, winner):
    """Returns text that tells why `plan` loses against `winner`."""
    if plan.memory > task.memory:
        return f"does not fit: needs {bytes_text(plan.memory)}"
    more = {part: plan.parts[part] - winner.parts[part] for part in plan.parts}
    part = max(more, key=more.get)
    if plan is winner or more[part] <= 0:
        return "as fast"
    reason = REASONS[plan.method if part == "cp" else part]
    where = _where(task, plan, part) if part in (*AXES, "dp") else ""
    return f"+{_seconds_text(more[part])}: {reason}{where}"


def _where(task, plan, axis):
    """Returns " between nodes" or " inside nodes" for the messages of this axis, or "" if there are
    no nodes."""
    sizes = {name: getattr(plan, name) for name in ("dp", *AXES)}
    way = plan_step.links_of_axes(Network(task.links, task.ranks), sizes)[axis]
    return "" if task.links.node is None else " between nodes" if way.leave else " inside nodes"


def why(task, found, tr=str):
    """Returns lines of text. They tell why the first Plan in the list `found` wins, axis by
    axis."""
    best = found[0]
    shares = ", ".join(f"{tr(part)} {100 * seconds / best.time_s:.0f}%"
                       for part, seconds in best.parts.items() if seconds)
    lines = [f"{best.name} wins: {_seconds_text(best.time_s)} a step ({shares})."]
    for axis in AXES:
        lines += _why_axis(task, found, axis)
    return "\n".join(map(tr, [*lines, f"dp {best.dp} follows from the other numbers."]))


def _why_axis(task, found, axis):
    """Returns sentences that say why the winner has its number of ranks along this axis. Compares
    the winner with Plans that have the same numbers along all other axes."""
    best = found[0]
    size, others = getattr(best, axis), [other for other in AXES if other != axis]
    alike = sorted((p for p in found if all(getattr(p, o) == getattr(best, o) for o in others)),
                   key=lambda p: getattr(p, axis))
    at = alike.index(best)
    beside = ", ".join(f"{o} {getattr(best, o)}" for o in others
                       if getattr(best, o) > 1 or o in ("tp", "pp"))
    lines = []
    if at and alike[at - 1].memory > task.memory:
        less = alike[at - 1]
        lines.append(f"{axis} {size} is the smallest number that fits into memory with {beside}: "
                     f"{axis} {getattr(less, axis)} would need {bytes_text(less.memory)}, but a "
                     f"rank has {bytes_text(task.memory)}.")
    elif at:
        lines.append(_beside(task, alike[at - 1], best, axis))
    elif size > 1:
        lines.append(f"{axis} {size} is the smallest number that a batch of {task.batch} rows "
                     f"allows with {beside}.")
    elif len(alike) > 1 or axis in ("tp", "pp"):
        lines.append(f"{axis} 1 fits.")
    if axis != "pp" and size > 1 and task.links.node is not None:
        crosses = "between" in _where(task, best, axis)
        lines.append(f"The messages of {axis} {size} go between nodes." if crosses else
                     f"The messages of {axis} {size} stay inside nodes.")
    if at + 1 < len(alike):
        lines.append(_beside(task, alike[at + 1], best, axis))
    return lines


def _beside(task, plan, best, axis):
    """Returns a sentence about a plan with more or fewer ranks along an axis than the winner."""
    name, words = f"{axis} {getattr(plan, axis)}", why_not(task, plan, best)
    if plan.memory > task.memory:
        return f"{name} does not fit: needs {bytes_text(plan.memory)}."
    return f"{name} is as fast." if words == "as fast" else f"{name} fits too, but costs {words}."


def bytes_text(n_bytes):
    """Returns n_bytes as text with three digits: 1.62e10 as "16.2 GB" (1 GB is 1e9 bytes)."""
    return _with_unit(n_bytes, (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1)))


def _seconds_text(seconds):
    return _with_unit(seconds, (("s", 1), ("ms", 1e-3), ("us", 1e-6)))


def _with_unit(x, units):
    name, size = next(((u, s) for u, s in units if x >= 0.9995 * s), units[-1])
    return f"{x / size:.3g} {name}" if x < 999.5 * size else f"{x / size:,.0f} {name}"
