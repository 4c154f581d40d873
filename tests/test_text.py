"""Tests minidl/text.py: it pads columns like str.format, and counts Chinese characters as two."""

import pytest

from minidl.text import Columns, padded, width, word


def test_a_table_in_latin_letters_is_that_of_format():
    table = Columns(("kernel", "<12"), ("ms", ">8"), ("of a copy", ">10"), start="  ", gap=" ")
    form = "  {:<12} {:>8} {:>10}"
    assert table.head() == form.format("kernel", "ms", "of a copy")
    assert table.row("softmax_v1", 0.25, "") == form.format("softmax_v1", 0.25, "").rstrip()
    assert table.row("longer than it may be", 1, 2) == form.format("longer than it may be", 1, 2)


def test_columns_begin_below_each_other_in_chinese():
    table = Columns(("operator", "<12"), ("calls", ">8"), ("line", "<0"), gap=" ")
    chinese = {"column operator": "算子", "column calls": "调用次数", "column line": "行"}
    head, row = table.head(chinese.get), table.row("matmul", 7, "a.py:3")
    assert head == "算子         调用次数 行" and width(head[:head.index("行")]) == row.index("a.py")
    assert width("梯度 x") == 6 and padded("梯度", 6, ">") == "  梯度"


def test_a_word_that_no_table_knows_stays():
    assert word("  called at", str) == "  called at" and word("", str) == ""
    assert word("  time", {"column time": "时间"}.get) == "  时间"


def test_every_column_has_its_cell():
    with pytest.raises(ValueError, match="longer"):
        Columns(("a", "<3"), ("b", "<3")).row("x")
