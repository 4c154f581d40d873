"""The report on the terminal.    Test: tests/profile/test_report.py   Figures: summary.py"""

from minidl.profile import advice
from minidl.profile.summary import ROWS, mean_rows, slowest


def text(summary):
    """Where a step's time goes, the operators, the communication, three sentences."""
    return "\n\n".join(filter(None, (
        _rows(summary), _operators(summary), _modules(summary), _kernels(summary),
        _communication(summary), _memory(summary), "\n".join(advice.sentences(summary)))))


def _rows(summary):
    ranks, means, slow = summary["ranks"], mean_rows(summary), slowest(summary)
    step_s = sum(r["step_s"] for r in ranks) / len(ranks)
    rank = f"rank {slow['rank']} ms"
    lines = [f"a step, the mean of {summary['n_steps']} on {len(ranks)} rank"
             f"{'s' * (len(ranks) > 1)}",
             f"{'':30}{'mean ms':>10}{'':>8}{rank:>12}  (the slowest)"]
    for row in ROWS:
        if means[row] or slow["rows"][row]:
            lines.append(f"{row:30}{1e3 * means[row]:>10.2f}{means[row] / step_s:>8.1%}"
                         f"{1e3 * slow['rows'][row]:>12.2f}")
    lines.append(f"{'step':30}{1e3 * step_s:>10.2f}{1:>8.0%}{1e3 * slow['step_s']:>12.2f}")
    if len(ranks) > 1:
        lines.append(f"the ranks' clocks agree to {1e6 * max(r['error_s'] for r in ranks):.0f} us")
    if errors := [error_s for r in ranks for error_s in r["gpus"].values()]:
        lines.append("below: what ran on a GPU by its own clock, which is the host's to "
                     f"{1e6 * max(errors):.1f} us")
    return "\n".join(lines)


def _operators(summary):
    lines = [f"{'operator':34}{'ms':>8}{'calls':>7}{'GFLOP/s':>9}{'GB/s':>7}{'x roofline':>11}"]
    for op in summary["operators"][:10]:
        name = f"{op['name']} {op['phase']}" + (" float64" * (op["dtype"] == "float64"))
        roof = f"{op['s'] / op['roof_s']:.1f}" if op.get("roof_s") else "-"
        speed = f"{op['flops'] / op['s'] / 1e9:,.1f}" if op["flops"] and op["s"] else "-"
        lines.append(f"{name:34}{1e3 * op['s']:>8.2f}{op['calls']:>7.0f}{speed:>9}"
                     f"{op['bytes'] / max(op['s'], 1e-12) / 1e9:>7.1f}{roof:>11}")
    if not summary["peak"]:
        lines.append("no roofline: `minidl doctor --peaks` measures this machine's")
    return "\n".join(lines)


def _modules(summary):
    return "\n".join([f"{'module':34}{'forward ms':>12}{'backward ms':>12}", *(
        f"{path[-34:]:34}{1e3 * forward:>12.2f}{1e3 * backward:>12.2f}"
        for path, forward, backward in summary["modules"][:8])])


def _kernels(summary):
    if not summary["kernels"]:
        return ""
    lines = [f"{'kernel':34}{'on':7}{'ms':>8}{'calls':>7}{'MB':>9}{'GB/s':>7}"]
    for k in summary["kernels"][:8]:
        moved, speed = "-", "-"
        if k["bytes"] is not None:
            moved = f"{k['bytes'] / 1e6:.2f}"
            speed = f"{k['bytes'] / max(k['s'], 1e-12) / 1e9:.1f}"
        lines.append(f"{k['name'][:33]:34}{k['on']:7}{1e3 * k['s']:>8.2f}{k['calls']:>7.0f}"
                     f"{moved:>9}{speed:>7}")
    return "\n".join(lines)


def _communication(summary):
    if not summary["collectives"]:
        return ""
    lines = [f"{'collective':26}{'calls':>6}{'sent B':>13}{'peers':>8}{'waiting ms':>11}"
             f"{'moving ms':>10}  called at"]
    for c in summary["collectives"][:8]:
        lines.append(f"{c['name'][:25]:26}{c['calls']:>6.1f}{c['sent']:>13,.0f}"
                     f"{','.join(map(str, c['peers']))[:7]:>8}{1e3 * c['wait_s']:>11.2f}"
                     f"{1e3 * c['moving_s']:>10.2f}  {c['line']}")
    total, exposed = (sum(r["communication"][k] for r in summary["ranks"]) / len(summary["ranks"])
                      for k in ("total_s", "exposed_s"))
    share = exposed / total if total else 0
    step_s = sum(r["step_s"] for r in summary["ranks"]) / len(summary["ranks"])
    lines.append(f"exposed communication: {1e3 * exposed:.2f} ms of {1e3 * total:.2f} ({share:.0%})"
                 f", {exposed / step_s:.1%} of the step; the rest is behind the computation")
    return "\n".join(lines)


def _memory(summary):
    kinds = sorted(summary["memory"].items(), key=lambda item: -item[1])
    return "\n".join([f"{'memory at the peak':34}{'MB':>8}", *(
        f"{kind:34}{n / 1e6:>8.2f}" for kind, n in kinds)]) if kinds else ""
