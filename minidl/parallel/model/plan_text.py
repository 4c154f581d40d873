"""What a planner found, in words: the table of plans, why the first one wins, why the others lose.

All of it follows from the plans' figures: a loser is told by the part of its step that is longest
beside the winner's, a winner's axis by the plans that have a little more or less of it.

Test: tests/parallel/model/test_planner.py   Used by: cli/plan.py
"""

from minidl.parallel.model import plan_step
from minidl.parallel.model.plan_network import Network


def text(task, found, rows=None):
    """The table of these Plans (the first `rows` of them), why the first one wins, and after each
    of the others why it loses. cp and ep have columns if any plan has more than 1 of them."""
    also = [axis for axis in ("cp", "ep") if any(getattr(plan, axis) > 1 for plan in found)]
    lines = ["".join([f"{'dp':>6}{'pp':>4}{'tp':>4}", *(f"{axis:>5}" for axis in also),
                      f"{'rows x m':>11}  {'schedule':17}{'memory':>9}{'sent: tp':>10}",
                      *(f"{axis:>9}" for axis in also),
                      f"{'pp':>9}{'dp':>9}{'bubble':>8}{'step':>10}"])]
    for plan in found[:rows]:
        fits, sent = plan.memory <= task.memory, plan.sent
        schedule = plan.schedule if plan.pp > 1 else "-"
        lines.append("".join([
            f"{plan.dp:6}{plan.pp:4}{plan.tp:4}",
            *(f"{f'{getattr(plan, axis)}{plan.method[:1] * (axis == also[0])}':>5}"
              for axis in also),
            f"{f'{plan.micro} x {plan.m}':>11}  ",
            f"{schedule + (f', v {plan.v}' if plan.v > 1 else ''):17}{bytes_text(plan.memory):>9}",
            f"{bytes_text(sent['tp']):>10}", *(f"{bytes_text(sent[axis]):>9}" for axis in also),
            f"{bytes_text(sent['pp'] + sent['tied']):>9}{bytes_text(sent['dp']):>9}",
            f"{100 * plan.bubble:7.1f}%{_seconds_text(plan.time_s):>10}  ",
            "wins" if plan is found[0] and fits else why_not(task, plan, found[0])]))
    if left := len(found) - len(found[:rows]):
        lines.append(f"... and {left} more")
    lines.append("memory: of the fullest rank; sent: by a rank of the busiest stage, in a step; "
                 "bubble: waiting for other stages, sends included")
    if "cp" in also:
        lines.append("cp: ranks that share a text, r by ring attention, u by Ulysses")
    if task.shape.experts:
        lines.append("experts: tokens routed evenly, none dropped; tp 1")
    if found[0].memory <= task.memory:
        lines += ["", why(task, found)]
    return "\n".join(lines)


WORDS = {"compute": "its slowest stage computes longer", "bubble": "a larger bubble",
         "sends": "sends from stage to stage that somebody waits for",
         "tied": "the first and the last stage sum the gradient of the weight that they share"}


def why_not(task, plan, winner):
    """What a plan loses by, from the figures."""
    if plan.memory > task.memory:
        return f"does not fit: needs {bytes_text(plan.memory)}"
    more = {part: plan.parts[part] - winner.parts[part] for part in plan.parts}
    part = max(more, key=more.get)
    if plan is winner or more[part] <= 0:
        return "as fast"
    if part in WORDS:
        reason = WORDS[part]
    else:
        what = {"tp": "all-reduces of activations", "dp": "all-reduces of gradients",
                "ep": "tokens to experts and back",
                "cp": "keys and values that attention waits for" if plan.method == "ring" else
                      "all-to-alls of attention"}[part]
        reason = f"{what}{_where(task, plan, part)}"
    return f"+{_seconds_text(more[part])}: {reason}"


def _where(task, plan, axis):
    """Where groups of this axis send, if there are nodes."""
    sizes = {name: getattr(plan, name) for name in ("dp", "pp", "tp", "cp", "ep")}
    way = plan_step.ways(Network(task.links, task.ranks), sizes)[axis]
    return "" if task.links.node is None else " between nodes" if way.leave else " inside nodes"


def why(task, found):
    """Why the first of these Plans wins, axis by axis."""
    best = found[0]
    shares = ", ".join(f"{part} {100 * seconds / best.time_s:.0f}%"
                       for part, seconds in best.parts.items() if seconds)
    sentences = [f"{best.name} wins: {_seconds_text(best.time_s)} a step ({shares})."]
    axes = "tp", "pp", "cp", "ep"
    for axis in axes:
        size, others = getattr(best, axis), [other for other in axes if other != axis]
        alike = [p for p in found if all(getattr(p, o) == getattr(best, o) for o in others)]
        less = max((p for p in alike if getattr(p, axis) < size),
                   key=lambda p: getattr(p, axis), default=None)
        more = min((p for p in alike if getattr(p, axis) > size),
                   key=lambda p: getattr(p, axis), default=None)
        if less and less.memory > task.memory:
            reason = (f"{axis} {size} is the least that fits beside {_beside(best, others)}: "
                      f"{axis} {getattr(less, axis)} would need "
                      f"{bytes_text(less.memory)} of {bytes_text(task.memory)}")
        elif less:
            reason = f"{axis} {getattr(less, axis)} fits too, but {_by(task, less, best)}"
        elif size > 1:
            reason = (f"{axis} {size} is the least that {task.batch} rows allow beside "
                      f"{_beside(best, others)}")
        elif more or axis in ("tp", "pp"):
            reason = f"{axis} 1 fits"
        else:
            continue
        if axis != "pp" and size > 1 and task.links.node is not None:
            what = {"tp": "all-reduces", "cp": "messages", "ep": "messages"}[axis]
            verb = "go" if "between" in _where(task, best, axis) else "stay"
            reason += f"; the {what} of {axis} {size} {verb}{_where(task, best, axis)}"
        if more:
            reason += f"; {axis} {getattr(more, axis)} {_by(task, more, best)}"
        sentences.append(reason + ".")
    sentences.append(f"dp {best.dp} is the rest.")
    return "\n".join(sentences)


def _beside(plan, axes):
    """The other axes; those of 1 only where all are."""
    names = [f"{axis} {getattr(plan, axis)}" for axis in axes
             if getattr(plan, axis) > 1 or axis in ("tp", "pp")]
    return ", ".join(names)


def _by(task, plan, best):
    words = why_not(task, plan, best)
    return words if words.startswith(("does", "as")) else f"costs {words}"


def bytes_text(n_bytes):
    """1.62e10 as "16.2 GB": thousands, three figures."""
    return _with_unit(n_bytes, (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1)))


def _seconds_text(seconds):
    return _with_unit(seconds, (("s", 1), ("ms", 1e-3), ("us", 1e-6)))


def _with_unit(x, units):
    name, size = next(((u, s) for u, s in units if x >= 0.9995 * s), units[-1])
    return f"{x / size:.3g} {name}" if x < 999.5 * size else f"{x / size:,.0f} {name}"
