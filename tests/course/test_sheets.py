"""Sheets: every one in both forms, on one page, with cells that the library computes."""

import functools
import re
import subprocess
import sys

import matplotlib
import numpy as np
import pytest

from minidl.comm import Ledger, ring, simulate
from minidl.course import exercise
from minidl.course.student import load
from minidl.memory.predict import predict
from minidl.parallel.model import schedule
from minidl.plain import pipeline

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402: after the choice of a backend without windows
from matplotlib.text import Text  # noqa: E402

SCRIPT = exercise.ROOT / "docs" / "course" / "sheets.py"
SHEETS = load(SCRIPT)


@functools.cache
def sheet(name):
    return SHEETS.SHEETS[name]()


def blocks(name):
    """{title: Block} of a sheet."""
    return {b.title: b for line in sheet(name).lines for b in line}


@functools.cache
def texts(name, solved):
    """(the figure, the texts that are drawn on it)."""
    with plt.rc_context(SHEETS.STYLE):
        figure = SHEETS.draw(plt, sheet(name), solved)
        figure.draw_without_rendering()
        plt.close(figure)  # pyplot forgets it; the figure stays
    return figure, [t for t in figure.findobj(Text) if t.get_text()]


@pytest.mark.parametrize("name", SHEETS.SHEETS)
def test_a_blank_sheet_shows_what_is_given_and_a_solved_one_all_cells(name):
    cells, given = [], []
    for block in blocks(name).values():
        assert len(block.cells) == len(block.rows), block.title
        assert {len(cell_row) for cell_row in block.cells} == {len(block.columns)}, block.title
        cells += [text for cell_row in block.cells for text in cell_row if text]
        given += [block.cells[i][j] for i, j in block.given]
    shown = {solved: len(texts(name, solved)[1]) for solved in (False, True)}
    assert shown[True] - shown[False] == len(cells) - len(given) > 10


@pytest.mark.parametrize("name", SHEETS.SHEETS)
def test_every_text_is_on_the_page_and_no_text_meets_another(name):
    figure, drawn = texts(name, True)
    page = figure.bbox.padded(-5 * figure.dpi / 25.4)  # printers leave 5 mm
    boxes = [(t.get_text(), t.get_window_extent()) for t in drawn]
    for text, box in boxes:
        assert page.x0 <= box.x0 and box.x1 <= page.x1, text
        assert page.y0 <= box.y0 and box.y1 <= page.y1, text
    met = [(a, b) for i, (a, box) in enumerate(boxes) for b, other in boxes[:i]
           if box.overlaps(other)]
    assert met == []


def test_the_rings_last_cells_are_those_of_the_librarys_ring():
    p = 4
    found = blocks("ring")
    for name, collective in ((f"reduce-scatter, step {p - 2}", ring.reduce_scatter),
                             (f"all-gather, step {p - 2}", ring.all_reduce)):
        def run(t, collective=collective):
            x = np.full(p, 2.0**t.rank)
            collective(t, x)
            return x

        held = [[SHEETS.members(int(bits), p) for bits in x] for x in simulate(p, run)]
        assert found[name].cells == held, name
    one_chunk = simulate(p, lambda t: ring.bytes_sent(1_000_000, 4, p, t.rank))
    assert found["what a rank sends"].cells[2] == [f"{one_chunk[0]:,}"]


@pytest.mark.parametrize("name, parts, plain", [
    ("GPipe", schedule.gpipe(4, 8), pipeline.gpipe),
    ("1F1B", schedule.one_f_one_b(4, 8), pipeline.one_f_one_b)])
def test_the_charts_have_the_schedules_parts_in_their_order(name, parts, plain):
    found = blocks("pipeline")
    schedule.check(parts)
    for stage, lane in enumerate(found[name].cells):
        assert [text for text in lane if text] == plain(stage, 4, 8)
    live = found["micro-batches that a stage holds at the most"]
    assert live.cells[live.rows.index(name)] == [str(n) for n in schedule.live(parts)]
    bubble = schedule.bubble(schedule.timeline(parts, F=1, B=1, W=0))
    cost = found["what it costs"]
    assert cost.cells[2][cost.columns.index(name)] == f"{bubble:.0%}" == "27%"


@pytest.mark.parametrize("n", [4, 8, 64])
def test_zeros_bytes_are_the_predictions(n):
    table = blocks("zero")[f"bytes a parameter on each of N = {n} ranks"]
    for stage in range(4):
        x = 1_000 * n
        total = predict(x, precision="O2", zero=stage, world=n)["total"] / x
        assert float(table.cells[stage][3]) == pytest.approx(total, rel=1e-3)
        parts = [float(text) for text in table.cells[stage]]
        assert sum(parts[:3]) == pytest.approx(parts[3], rel=1e-3)


def test_zeros_stages_send_twice_twice_and_three_times():
    assert [text for (text,) in blocks("zero")["sent in a step"].cells] == ["2", "2", "2", "3"]


def test_a_warps_steps_are_sums_of_the_row_before():
    for block in blocks("warp").values():
        held = [[int(text) for text in cell_row] for cell_row in block.cells]
        n = len(held[0])
        for delta, old, new in zip(block.rows[1:], held[:-1], held[1:], strict=True):
            delta = int(delta)
            for lane in range(n):
                other = lane ^ delta if "xor" in block.title else lane + delta
                assert new[lane] == old[lane] + old[other if other < n else lane], block.title
        assert held[-1][0] == sum(held[0])


def test_flash_attentions_sums_end_at_softmax():
    found = blocks("flash")
    keys = np.array(found["one query: its scores, and the values of the keys"].cells, float)
    p = np.exp(keys[0])
    assert float(found["at the end"].cells[0][0]) == pytest.approx(p @ keys[1] / p.sum(), abs=6e-4)
    whole, masked, left_out = (int(c) for (c,) in found["L = 4,096: how many tiles"].cells)
    assert (whole, masked, left_out) == (32 * 31 // 2, 32, 32 * 31 // 2)


def test_the_topologies_of_four_ranks_are_those_of_the_ledger():
    found = blocks("topologies")
    sent = found["bytes sent by the busiest rank, in K"]

    def run(t):
        t = Ledger(t)
        ring.all_reduce(t, np.zeros(400))
        return t.messages_sent, t.bytes_sent

    messages, n_bytes = simulate(4, run)[0]
    assert float(sent.cells[0][0]) == n_bytes / 3200
    assert int(found["messages sent by the busiest rank"].cells[0][0]) == messages


def test_the_threads_that_work_are_n():
    found = blocks("threads")
    assert found["n = 10, blocks of 4 threads"].cells[3].count("yes") == 10
    for name, cells in zip(found["larger ones"].rows, found["larger ones"].cells, strict=True):
        n, size = (int(text.replace(",", "")) for text in re.findall(r"[\d,]*\d", name))
        blocks_, threads, idle = (int(text.replace(",", "")) for text in cells)
        assert threads == blocks_ * size and threads - idle == n and idle < size


def test_the_script_writes_three_files_of_a_sheet_and_refuses_an_unknown_name(tmp_path):
    def run(*arguments):
        return subprocess.run([sys.executable, SCRIPT, *arguments], cwd=tmp_path,
                              capture_output=True, text=True)

    done = run("ring", "--solved")
    files = sorted(f.name for f in (tmp_path / "out" / "sheets").iterdir())
    assert done.returncode == 0 and files == [f"ring_solved.{k}" for k in ("pdf", "png", "svg")]
    (box,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]",
                        (tmp_path / "out/sheets/ring_solved.pdf").read_bytes())
    assert [round(float(points) / 72 * 25.4) for points in box] == [297, 210]  # mm, A4
    refused = run("rings")
    assert refused.returncode == 2 and "no sheet rings; there are ring, pipeline" in refused.stderr
