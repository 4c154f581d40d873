"""The table at the end of a tutorial: found values, values of theory, and rules that compare them.

A found value is a measured or a modelled value. Each row has one of these rules:

    exact         found == theory: bytes, messages, elements, steps
    rel<1e-6      |found - theory| < 1e-6 * |theory|
    abs<1e-6      |found - theory| < 1e-6
    factor<3      theory / 3 < found < theory * 3: orders of magnitude
    <=            found <= theory: bounds and budgets
    info          not checked: wall time, names of things

Measured values and modelled values stand in different columns. `make tutorials` joins the tables
of all tutorials into one.

Test: tests/course/test_table.py   Tutorial: all of them, through minidl/course/tutorial.py
"""

import json
from typing import NamedTuple

import numpy as np

from minidl.text import padded, tr, width


class Row(NamedTuple):
    quantity: str
    measured: object  # None if the value is modelled
    modelled: object
    theory: object
    rule: str
    ok: bool | None  # None if the rule is "info"
    tutorial: str = ""  # used in the table of all tutorials


def row(quantity, measured=None, theory=None, rule="info", modelled=None):
    """Returns the Row of a measured or a modelled value, judged by its rule."""
    found = measured if modelled is None else modelled
    return Row(quantity, measured, modelled, theory, rule, holds(found, theory, rule))


def holds(found, theory, rule):
    """Returns True if the found value is ok by the rule, otherwise False. Returns None if the rule
    is "info". A nan is never ok.

    Raises ValueError for an unknown rule."""
    if rule == "info":
        return None
    if rule == "exact":
        return bool(found == theory)
    if rule == "<=":
        return bool(found <= theory)
    kind, _, bound = rule.partition("<")
    if kind not in ("rel", "abs", "factor") or not bound:
        raise ValueError(f"rule must be exact, rel<x, abs<x, factor<x, <= or info; got {rule!r}")
    bound = float(bound)
    if kind == "factor":
        return bool(theory / bound < found < theory * bound)
    return bool(abs(found - theory) < bound * (abs(theory) if kind == "rel" else 1))


def merge(tables):
    """Returns one list of Rows from the tables of all ranks. If a row is not ok on some rank, takes
    this row from the first such rank. Otherwise takes the row from rank 0."""
    rows = {}
    for rank, table in enumerate(tables):
        for row in table:
            if row.quantity not in rows:
                rows[row.quantity] = row
            elif row.ok is False and rows[row.quantity].ok is not False:
                rows[row.quantity] = row._replace(quantity=f"{row.quantity} (on rank {rank})")
    return list(rows.values())


def failed(rows):
    """Returns the names of the rows that are not ok."""
    return [": ".join(filter(None, (r.tutorial, r.quantity))) for r in rows if r.ok is False]


def render(rows):
    """Returns the table as text. Leaves out the columns "tutorial" and "modelled" if they are
    empty."""
    word = {True: "yes", False: "NO", None: "-"}
    columns = {name: [tr(name), *(_text(getattr(r, name)) for r in rows)] for name in _COLUMNS}
    columns["ok"] = [tr("ok"), *(tr(word[r.ok]) for r in rows)]
    for name in "tutorial", "modelled":
        if not any(columns[name][1:]):
            del columns[name]
    widths = {name: max(map(width, cells)) for name, cells in columns.items()}
    lines = []
    for i in range(1 + len(rows)):
        cells = [padded(cells[i], widths[name], ">" if i and name in _NUMBERS else "<")
                 for name, cells in columns.items()]
        lines.append(" | ".join(cells).rstrip())
    lines.insert(1, "-+-".join("-" * width for width in widths.values()))
    if names := failed(rows):
        lines.append(f"{tr('NOT OK')}: {'; '.join(map(tr, names))}")
    return "\n".join(lines)


_COLUMNS = ("tutorial", "quantity", "measured", "modelled", "theory", "rule", "ok")
_NUMBERS = ("measured", "modelled", "theory")


def _text(value):
    if value is None:
        return ""
    if isinstance(value, (bool, np.bool_, str)):
        return tr({True: "yes", False: "no"}.get(value, str(value)))
    if isinstance(value, (int, np.integer)):
        return f"{value:,}"
    if isinstance(value, (float, np.floating)):
        return f"{value:.6g}"
    return str(value)


def save(rows, path):
    """Writes the rows as JSON: a list of objects with the names of the columns."""
    text = json.dumps([r._asdict() for r in rows], indent=1,
                      default=lambda v: v.item() if isinstance(v, np.generic) else str(v))
    path.write_text(text + "\n")


def load(path):
    return [Row(**fields) for fields in json.loads(path.read_text())]
