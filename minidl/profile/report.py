"""Makes the text of the report.    Test: tests/profile/test_report.py   Numbers: summary.py"""

from minidl.profile import advice
from minidl.profile.summary import ROWS, mean_rows, slowest
from minidl.text import Columns, word

OPERATORS = Columns(("operator", "<34"), ("ms", ">8"), ("calls", ">7"), ("GFLOP/s", ">9"),
                    ("GB/s", ">7"), ("x roofline", ">11"))
MODULES = Columns(("module", "<34"), ("forward ms", ">12"), ("backward ms", ">12"))
KERNELS = Columns(("kernel", "<34"), ("on", "<7"), ("ms", ">8"), ("calls", ">7"), ("MB", ">9"),
                  ("GB/s", ">7"))
COLLECTIVES = Columns(("collective", "<26"), ("calls", ">6"), ("sent B", ">13"), ("peers", ">8"),
                      ("waiting ms", ">11"), ("moving ms", ">10"), ("  called at", "<0"))
MEMORY = Columns(("memory at the peak", "<34"), ("MB", ">8"))


def text(summary, tr=str):
    """Returns the report: where a step's time goes, operators, modules, kernels, communication,
    memory, and three sentences. tr: a function that translates a sentence or a word."""
    return "\n\n".join(filter(None, (
        _rows(summary, tr), _operators(summary, tr), _modules(summary, tr), _kernels(summary, tr),
        _communication(summary, tr), _memory(summary, tr),
        "\n".join(map(tr, advice.sentences(summary))))))


def _rows(summary, tr):
    ranks, means, slow = summary["ranks"], mean_rows(summary), slowest(summary)
    step_s = sum(r["step_s"] for r in ranks) / len(ranks)
    columns = Columns(("", "<30"), ("mean ms", ">10"), ("", ">8"),
                      (f"rank {slow['rank']} ms", ">12"), ("  (the slowest)", "<0"))
    n = "1 rank" if len(ranks) == 1 else f"{len(ranks)} ranks"
    lines = [tr(f"a step, the mean of {summary['n_steps']} on {n}"), columns.head(tr)]
    for row in ROWS:
        if means[row] or slow["rows"][row]:
            lines.append(columns.row(word(row, tr), f"{1e3 * means[row]:.2f}",
                                     f"{means[row] / step_s:.1%}",
                                     f"{1e3 * slow['rows'][row]:.2f}", ""))
    lines.append(columns.row(word("step", tr), f"{1e3 * step_s:.2f}", "100%",
                             f"{1e3 * slow['step_s']:.2f}", ""))
    if len(ranks) > 1:
        error_us = 1e6 * max(r["error_s"] for r in ranks)
        lines.append(tr(f"the ranks' clocks agree to {error_us:.0f} us"))
    if errors := [error_s for r in ranks for error_s in r["gpus"].values()]:
        lines.append(tr("below, work on a GPU is timed by the GPU's own clock, which agrees with "
                        f"the host's clock to {1e6 * max(errors):.1f} us"))
    return "\n".join(lines)


def _operators(summary, tr):
    lines = [OPERATORS.head(tr)]
    for op in summary["operators"][:10]:
        name = f"{op['name']} {word(op['phase'], tr)}" + (" float64" * (op["dtype"] == "float64"))
        roof = f"{op['s'] / op['roof_s']:.1f}" if op.get("roof_s") else "-"
        speed = f"{op['flops'] / op['s'] / 1e9:,.1f}" if op["flops"] and op["s"] else "-"
        lines.append(OPERATORS.row(name, f"{1e3 * op['s']:.2f}", f"{op['calls']:.0f}", speed,
                                   f"{op['bytes'] / max(op['s'], 1e-12) / 1e9:.1f}", roof))
    if not summary["peak"]:
        lines.append(tr("There is no roofline yet: `minidl doctor --peaks` measures this machine's "
                        "peaks."))
    return "\n".join(lines)


def _modules(summary, tr):
    return "\n".join([MODULES.head(tr), *(
        MODULES.row(tr(path)[-34:], f"{1e3 * forward:.2f}", f"{1e3 * backward:.2f}")
        for path, forward, backward in summary["modules"][:8])])


def _kernels(summary, tr):
    if not summary["kernels"]:
        return ""
    lines = [KERNELS.head(tr)]
    for k in summary["kernels"][:8]:
        moved, speed = "-", "-"
        if k["bytes"] is not None:
            moved = f"{k['bytes'] / 1e6:.2f}"
            speed = f"{k['bytes'] / max(k['s'], 1e-12) / 1e9:.1f}"
        lines.append(KERNELS.row(k["name"][:33], k["on"], f"{1e3 * k['s']:.2f}",
                                 f"{k['calls']:.0f}", moved, speed))
    return "\n".join(lines)


def _communication(summary, tr):
    if not summary["collectives"]:
        return ""
    lines = [COLLECTIVES.head(tr)]
    for c in summary["collectives"][:8]:
        lines.append(COLLECTIVES.row(
            c["name"][:25], f"{c['calls']:.1f}", f"{c['sent']:,.0f}",
            ",".join(map(str, c["peers"]))[:7], f"{1e3 * c['wait_s']:.2f}",
            f"{1e3 * c['moving_s']:.2f}", f"  {c['line']}"))
    total, exposed = (sum(r["communication"][k] for r in summary["ranks"]) / len(summary["ranks"])
                      for k in ("total_s", "exposed_s"))
    share = exposed / total if total else 0
    step_s = sum(r["step_s"] for r in summary["ranks"]) / len(summary["ranks"])
    lines.append(tr(f"exposed communication: {1e3 * exposed:.2f} of {1e3 * total:.2f} ms of "
                    f"communication ({share:.0%}), {exposed / step_s:.1%} of the step; the rest is "
                    "hidden behind the computation"))
    return "\n".join(lines)


def _memory(summary, tr):
    kinds = sorted(summary["memory"].items(), key=lambda item: -item[1])
    return "\n".join([MEMORY.head(tr), *(
        MEMORY.row(word(kind, tr), f"{n / 1e6:.2f}") for kind, n in kinds)]) if kinds else ""
