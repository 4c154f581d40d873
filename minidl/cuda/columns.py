"""Tables on a terminal, whose columns stay straight where a cell is Chinese.

    COLUMNS = Columns(("operator", "<34"), ("ms", ">8"))
    COLUMNS.head(tr)                  the names, by tr in the reader's language
    COLUMNS.row("matmul", "1.20")     a line below them; a cell that is too wide is not cut

A name is looked up as "column ms", and so is what `word` translates: `time` in a sentence may be
the name of an array, which stays. A cell is padded by the columns of the terminal that it takes.

Test: tests/cuda/test_columns.py   Used by: cuda/tool.py, profile/report.py, cli/kernel_bench.py
"""

import unicodedata


def width(text):
    """Columns of a terminal: a Chinese character takes two."""
    return sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def padded(text, columns, side="<"):
    space = " " * max(0, columns - width(text))
    return space + text if side == ">" else text + space


def word(name, tr):
    """A word of a table in the reader's language."""
    bare = name.strip()
    return name.replace(bare, tr(f"column {bare}").removeprefix("column ")) if bare else name


class Columns:
    """name, side and width of each column: ("ms", ">8"). start: before each line; gap: between two
    columns."""

    def __init__(self, *columns, start="", gap=""):
        self.columns, self.start, self.gap = columns, start, gap

    def head(self, tr=str):
        return self.row(*(word(name, tr) for name, _ in self.columns))

    def row(self, *cells):
        return self.start + self.gap.join(
            padded(str(cell), int(place[1:] or 0), place[0])
            for cell, (_, place) in zip(cells, self.columns, strict=True)).rstrip()
