"""docs/figures.md has the newest results, nothing is dropped, verdicts follow from figures."""

import copy
import json
import re
import sys

import pytest

from benchmarks.cluster import ROOT

FOLDER = ROOT / "benchmarks"
sys.path.insert(0, str(FOLDER))  # where a benchmark finds its neighbours

import common  # noqa: E402
import op_table  # noqa: E402

from benchmarks import run_all  # noqa: E402

PAGE = (ROOT / "docs" / "figures.md").read_text()
RESULTS = run_all.newest()


def faults(results):
    """What contradicts itself in results."""
    found = []
    for name, entry in results["benchmarks"].items():
        bars = {b["what"]: b for b in entry["bars"]}
        if len(bars) != len(entry["bars"]):
            found.append(f"{name}: two bars of one name")
        for b in entry["bars"]:
            again = common.bar(b["what"], b["figure"], b["wanted"], b["at_most"], b["best"])
            if again != b:
                found.append(f"{name}: {b['what']}")
        named = {what for row in entry["rows"] for what in row["bars"]}
        found += [f"{name}: no bar {what}" for what in named - set(bars)]
        found += [f"{name}: no row shows {what}" for what in set(bars) - named]
    return found


def test_the_page_has_the_table_of_the_newest_results():
    if run_all.with_table(PAGE, RESULTS, run_all.newest_gpu_day()) != PAGE:
        pytest.fail("docs/figures.md has not the table of the newest file of benchmarks/results: "
                    "run `make register`", pytrace=False)


def test_every_benchmark_is_in_the_newest_results():
    scripts = {path.stem for path in FOLDER.glob("bench_*.py")}
    assert len(scripts) > 10
    for name in scripts - set(RESULTS["benchmarks"]):
        pytest.fail(f"the newest file of benchmarks/results has nothing of benchmarks/{name}.py: "
                    f"`make bench ARGS='--only {name.removeprefix('bench_')}'` (or has the newest "
                    "file been deleted?)", pytrace=False)
    for name in set(RESULTS["benchmarks"]) - scripts:
        pytest.fail(f"the newest file of benchmarks/results has {name}, and there is no "
                    f"benchmarks/{name}.py: delete the entry {name} in the file, then run "
                    "`make register`", pytrace=False)
    for name, entry in RESULTS["benchmarks"].items():
        assert entry["rows"], f"benchmarks/{name}.py handed over no row (finish, common.py)"
        assert f"`{entry['command']}`" in PAGE, (
            f"docs/figures.md has no row of {name}: run `make register`")


def test_every_verdict_follows_from_its_figure():
    assert sum(len(entry["bars"]) for entry in RESULTS["benchmarks"].values()) > 100
    found = faults(RESULTS)
    assert not found, ("the newest file of benchmarks/results contradicts itself (was it edited by "
                       f"hand?): measure again with `make bench`: {found}")


def test_a_wrong_figure_is_seen():
    name = "bench_attention"
    changed = re.sub(r"(`scaled_dot_product_attention` \| )\S+", r"\g<1>9.87", PAGE)
    assert changed != PAGE
    assert run_all.with_table(changed, RESULTS, run_all.newest_gpu_day()) != changed
    for change in (
        lambda entry: entry["bars"][0].update(met=not entry["bars"][0]["met"]),
        lambda entry: entry["bars"][0].update(figure=entry["bars"][0]["wanted"] - 1),
        lambda entry: entry["rows"][0]["bars"].append("what nobody measured"),
        lambda entry: entry["rows"].clear(),
    ):
        wrong = copy.deepcopy(RESULTS)
        change(wrong["benchmarks"][name])
        assert faults(wrong), "a planted fault"


SCRIPT = f'''"""A benchmark of nothing.

    python benchmarks/bench_x.py
"""
import sys
sys.path.insert(0, {str(FOLDER)!r})
from common import bar, finish, row, skip
'''
GOOD = """
bars = [bar("so fast", 2.5, 2)]
finish({"n": 1}, bars, [row("how fast?", "nobody", "2.5 times", bars)], sys.argv[2], ["a GPU"])
"""
BEFORE = {"benchmarks": {"bench_x": dict(
    date="2001-02-03", machine="An Older Machine, 1 cores", command="python bench_x.py",
    load_before=0.0, versions={}, figures={}, bars=[common.bar("so fast", 1.5, 2)],
    rows=[dict(question="how fast?", peer="nobody", figure="1.5 times", bars=["so fast"])],
    note="2001-02-04 failed",
)}}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """run(body, before, only): the results of a benchmark with this body."""
    monkeypatch.setattr(run_all, "ROOT", tmp_path)
    script = tmp_path / "bench_x.py"

    def run(body, before, only=("bench_x",)):
        script.write_text(SCRIPT + body)
        return run_all.run_all([script], only, before)

    return run


def test_a_benchmark_hands_over_figures_bars_and_rows_and_what_it_left_out(run):
    results = run(GOOD, BEFORE)
    entry, text = results["benchmarks"]["bench_x"], run_all.table(results)
    assert entry["figures"] == {"n": 1} and entry["machine"] == common.machine()
    assert "| how fast? | nobody | 2.5 times | >= 2 | yes | `python bench_x.py` |\n" in text
    assert "1 of 1 goals are reached" in " ".join(text.split()) and "2001" not in text
    date = results["date"]
    assert text.endswith(f"- `python bench_x.py`: {date} left out: a GPU. "
                         f"Its figures are of {date}.\n")


@pytest.mark.parametrize("body, note", [
    ("skip('there is no GPU')", "skipped: there is no GPU"),
    ("sys.exit('out of memory')", "failed (1): out of memory"),
    ("1 / 0", "failed (1): ZeroDivisionError: division by zero"),
], ids=["skipped", "ends", "raises"])
def test_one_that_fails_keeps_its_last_figures_with_their_date_and_says_why(run, body, note):
    results = run(body, BEFORE)
    text = run_all.table(results)
    assert "| 1.5 times | >= 2 | no | `python bench_x.py` (2001-02-03, An Older Machine) |" in text
    assert f"`python bench_x.py`: {results['date']} {note}. Its figures are of 2001-02-03." in text


def test_one_that_fails_at_first_is_not_dropped(run):
    text = run_all.table(run("skip('no GPU')", {"benchmarks": {}}))
    assert "`python bench_x.py`:" in text and "skipped: no GPU. Its figures are of no date" in text


def test_one_that_was_not_asked_for_keeps_its_figures(run):
    results = run("1 / 0", BEFORE, only=())
    assert results["benchmarks"] == BEFORE["benchmarks"]
    assert "`python bench_x.py` (2001-02-03, An Older Machine) |" in run_all.table(results)


def test_a_benchmark_that_needs_pytorch_says_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit) as end:
        common.import_torch()
    assert end.value.code == common.SKIPPED and "minidl[bench]" in capsys.readouterr().err


def test_the_newest_results_are_those_that_were_finished_last(tmp_path):
    for name, finished in (("b", "2026-01-02T10:00:00"), ("a", "2026-01-02T11:00:00")):
        results = {"date": "2026-01-02", "machine": f"CPU {name}, 2 cores, 8 kB",
                   "benchmarks": {}, "finished": finished, "times": [1.0, 2.5]}
        run_all.write(results, tmp_path)
    assert run_all.newest(tmp_path)["machine"].startswith("CPU a")
    assert {p.name for p in tmp_path.iterdir()} == {"2026-01-02-cpu-a-2-cores.json",
                                                    "2026-01-02-cpu-b-2-cores.json"}


def test_a_gpus_day_stands_behind_the_table_and_is_no_result_of_the_others(tmp_path):
    day = {"date": "2026-01-03", "device": "a GPU", "finished": "2026-01-03T10:00:00", "steps": {
        "kernels": {"how": "done", "seconds": 9.5, "rows": [{"what": "add3", "share": "88%"}]}}}
    older = {**day, "device": "an older GPU", "finished": "2026-01-01T10:00:00"}
    results = {**RESULTS, "finished": "2026-01-02T10:00:00"}
    for name, found in (("b-gpu_day", day), ("gpu_day_a", older), ("cpu", results)):
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    assert run_all.newest(tmp_path) == results and run_all.newest_gpu_day(tmp_path) == day
    without = run_all.with_table(PAGE, RESULTS)
    page = run_all.with_table(without, RESULTS, day)
    assert "measured on a GPU, 2026-01-03" in page and "| add3 | 88% |" in page
    assert run_all.with_table(page, RESULTS, day) == page  # once
    assert run_all.with_table(page, RESULTS) == without
    (tmp_path / "none").mkdir()
    assert run_all.newest_gpu_day(tmp_path / "none") is None


def test_a_benchmark_starts_as_its_header_says(tmp_path, monkeypatch):
    monkeypatch.setattr(run_all, "ROOT", tmp_path)
    (tmp_path / "b.py").write_text('"""Ranks.\n\n    mpirun -n 3 python b.py\n"""\n# mpirun -n 9')
    assert run_all.command_of(tmp_path / "b.py") == "minidl run -n 3 b.py"


def test_nobody_always_follows_the_same_neighbour_and_every_rank_draws_the_same_order():
    orders = []
    for _ in range(2):
        order = []
        turns = {name: lambda name=name, order=order: order.append(name) or 1.0 for name in "abcd"}
        assert common.take_turns(turns, 8, warm_up=0) == {name: [1.0] * 8 for name in "abcd"}
        orders.append(order)
    assert orders[0] == orders[1]
    before_a = {order[i - 1] for i in range(1, len(order)) if order[i] == "a"}
    assert before_a >= {"b", "c", "d"}


def test_bars_judge_the_median_of_turns_and_keep_the_least_times():
    peer, ours = [3.0, 2.0, 9.0], [1.0, 2.0, 3.0]
    b = common.faster("x", peer, ours, 2.5)
    assert (b["figure"], b["best"], b["met"]) == (3.0, 2.0, True)


def test_the_goal_of_a_row_is_that_of_its_bars():
    bars = [common.bar("a", 1, 0.8), common.bar("b", 0, 0.8), common.bar("c", 2, 1.3)]
    assert run_all.goal(bars) == ">= 0.8 / 1.3" and run_all.reached(bars) == "2 of 3"
    none = [common.bar("bytes", 1, 0, at_most=True)]
    assert run_all.goal(none) == "exact" and run_all.reached(none) == "no"


def test_a_bar_of_an_op_is_about_its_worst_shape_and_number_of_threads():
    figures = [dict(op="f", elements=1 << 20, ratio=dict(chain=c, torch=t), best=dict(chain=c,
               torch=t)) for c, t in ((5.0, 0.9), (3.0, 1.2))]
    bars = op_table.bars_of(figures, {"f": 4})
    assert [(b["figure"], b["met"]) for b in bars["f"]] == [(3.0, False), (0.9, False)]
    rows = list(op_table.rows_of(figures, bars, {"f?": ["f"]}))
    assert [r["figure"] for r in rows] == ["3.00 to 5.00 times its speed",
                                           "0.90 to 1.20 times its speed"]
    assert [r["bars"] for r in rows] == [["f, 1 M: chain / kernel"], ["f, 1 M: torch / kernel"]]


def test_numbers_have_three_digits_or_all_before_the_point():
    assert [common.number(x) for x in (0.9, 1, 9.994, 9.996, 12.34, 99.96, 1234.5)] == [
        "0.90", "1.00", "9.99", "10.0", "12.3", "100", "1,234"]
    assert common.span([2.0, 1.0]) == "1.00 to 2.00" and common.span([1.001, 1.0]) == "1.00"


def test_a_quick_run_names_the_benchmarks_that_fail(tmp_path, monkeypatch):
    monkeypatch.setattr(run_all, "ROOT", tmp_path)
    good, bad, other = (tmp_path / f"bench_{name}.py" for name in ("good", "bad", "other"))
    good.write_text('"""Good."""\nimport os, sys\nassert os.environ["MINIDL_ONE_ROUND"] == "1"\n'
                    'open(sys.argv[-1], "w").write("{}")\n')
    bad.write_text('"""Bad."""\nraise AttributeError("no attribute ways")\n')
    other.write_text(f'"""Other."""\nraise SystemExit({common.SKIPPED})\n')
    names = ["bench_good", "bench_bad", "bench_other"]
    assert run_all.try_all([good, bad, other], names) == ["bench_bad"]
    assert run_all.try_all([good, bad, other], names[:1]) == []


def test_a_quick_run_has_one_round(monkeypatch):
    monkeypatch.setattr(common, "ONE_ROUND", True)
    assert common.take_turns({"a": lambda: 1.0, "b": lambda: 2.0}, 9) == {"a": [1.0], "b": [2.0]}
