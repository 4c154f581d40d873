"""minidl/course/language.py and docs/zh: what has Chinese is shown in Chinese, and shown right.

A reader of Chinese alone can do tutorials 00 to 07: what they, their graders and the commands run,
doctor, exercise, check show is found in the sources (messages.py) and looked up. English may change
first: what has no Chinese yet is shown in English and fails no test; `make register` lists it
(behind.py).
"""

import io
import os
import re
import runpy
import shutil
import subprocess
import sys
from argparse import Namespace
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from minidl import text as text_of_minidl
from minidl.cli import main
from minidl.comm import ring, simulate
from minidl.comm.observe.watch import Watch
from minidl.comm.transport.scheduler import Deadlock, RankFailed
from minidl.course import exercise, language, out, table
from minidl.course.language import digest, texts, translated
from minidl.memory import KINDS
from minidl.profile import report, summary
from minidl.text import padded, tr, width
from tests.conftest import some
from tests.course import behind
from tests.course.behind import HOLES, ROOT, STAMP, TUTORIALS, without_what_is_behind
from tests.course.messages import messages
from tests.tutorials.test_scripts import QUICK

CHINESE = re.compile("[\u4e00-\u9fff]")
# names, numbers and code are not translated: a line with two English words in a row is
LEFT = re.compile(r"\b(of|the|is|are|and|with|for|to|in)\b")


@pytest.fixture
def zh(monkeypatch):
    monkeypatch.setenv("MINIDL_LANG", "zh")


def test_the_messages_of_the_sources_are_found():
    found = messages('def f(t, n):\n    """No message."""\n    say(t, f"{n} ranks met")\n'
                     '    x = "center left"\n    raise Wrong(f"{n}: it is" + '
                     '(" off by one" if n else ""))\n'
                     '    table.row("bytes", n, n, "exact")\n    axes.set(title="loss")\n')
    assert found == ["{0} ranks met", "{0}: it is{1}", "off by one", "bytes", "loss"]


def test_every_entry_has_both_languages_and_the_same_holes():
    known = language.table("zh")
    text = (language.folder("zh") / "messages.po").read_text(encoding="utf-8")
    assert len(known) == text.count("\nmsgid ")  # no English twice
    for english, chinese in known.items():
        assert chinese, f"docs/zh/messages.po: the msgstr of {english!r} is empty: delete both"
        if english:
            holes = set(HOLES.findall(english))
            assert holes == set(HOLES.findall(chinese)), (
                f"docs/zh/messages.po: the Chinese of {english!r} wants the holes {holes}")


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.name)
def test_the_heads_and_tasks_that_are_translated_are_chinese(path):
    for name, (_, text) in texts(path.name[:2], "zh").items():
        where = f"docs/zh/tutorials/{path.name[:2]}.txt, {name}"
        assert CHINESE.search(text), f"{where}: no Chinese in it"
        assert max(map(width, text.splitlines())) <= 100, f"{where}: a line is wider than 100"


def test_a_translated_page_says_of_which_text_it_is():
    for page in behind.PAGES:
        found = STAMP.fullmatch(page.read_text(encoding="utf-8").partition("\n")[0])
        assert found and (ROOT / found[1]).exists(), (
            f"{page.name}: its first line must be `<!-- README.md of 0123456789ab -->`, a page and "
            f'its digest; `make register ARGS="--translated FILE"` writes the digest')


def test_what_is_behind_is_listed_and_no_failure(monkeypatch, tmp_path):
    """Each of the texts is missing, older than its English, or of nothing any more."""
    (tmp_path / "tutorials").mkdir()
    (tmp_path / "messages.po").write_text('msgid "rank {0}"\nmsgstr "rank {0}"\n')
    (tmp_path / "comments.po").write_text('msgid "gone"\nmsgstr "无"\n')
    (tmp_path / "tutorials/07.txt").write_text(
        f"=== head of {'0' * 12}\n旧\n=== 07z of {'1' * 12}\n旧\n")
    page = tmp_path / "a.md"
    page.write_text(f"<!-- README.md of {'2' * 12} -->\n旧\n")
    for module in (language, text_of_minidl):
        monkeypatch.setattr(module, "folder", lambda language: tmp_path)
    monkeypatch.setattr(behind, "PAGES", [page])
    monkeypatch.setattr(behind, "ROOT", tmp_path)
    monkeypatch.setattr(behind, "TUTORIALS", [path for path in TUTORIALS if "07" in path.name])
    ring = TUTORIALS[7]
    assert behind.texts_behind() == [
        ("docs/zh/tutorials/07.txt", "head: older than its English in 07_ring.py"),
        *(("docs/zh/tutorials/07.txt", f"07{letter}: no Chinese; it begins `=== 07{letter} of "
           f"{digest(behind.of_tutorial(ring)['07' + letter])}`") for letter in "abc"),
        ("docs/zh/tutorials/07.txt", "07z: no such exercise in 07_ring.py any more")]
    (tmp_path / "README.md").write_text("new")
    assert behind.pages_behind() == [("a.md", "older than README.md")]
    assert "a.md" in behind.stamp("a.md") and behind.pages_behind() == []


def test_a_message_or_a_comment_without_chinese_is_listed(monkeypatch):
    path = ROOT / "tutorials/07_ring.py"
    monkeypatch.setattr(behind, "messages_shown", lambda: {path: ["no dropout", "so new, {0}"]})
    monkeypatch.setattr(behind, "comments_shown", lambda: {path: ["guard", "newer"]})
    assert behind.messages_behind() == [
        ("docs/zh/messages.po", "no Chinese of 'so new, {0}' (tutorials/07_ring.py)")]
    found = behind.comments_behind()
    assert found[0] == ("docs/zh/comments.po", "no Chinese of 'newer' (tutorials/07_ring.py)")
    assert all(file == "docs/zh/comments.po" and what.endswith("any more")
               for file, what in found[1:]) and len(found) > 100
    assert without_what_is_behind("很新 so new, 3 of the\n  ranks") == "很新 | 3 of the ranks"


@pytest.mark.parametrize("name", ["", "en", "en_US.UTF-8"])
def test_english_stays_as_it_is(name, monkeypatch):
    monkeypatch.setenv("MINIDL_LANG", name)
    assert tr("number received from the left") == "number received from the left"
    assert translated("07", "head", "x") == "x"


def test_an_unknown_language_is_an_error(monkeypatch):
    monkeypatch.setenv("MINIDL_LANG", "fr")
    with pytest.raises(SystemExit, match="MINIDL_LANG=fr: wanted one of en, zh"):
        language.language()
    assert tr("no dropout") == "no dropout"  # a report must not fail


def test_what_is_put_in_is_translated_in_its_turn(zh):
    assert tr("no dropout, 4 segments: the random numbers after backward differ from a run without "
              "recompute. Set the generator back to its old state").startswith("没有 dropout")
    assert tr("  FAILED  ") == "  未通过  "
    assert tr("checking work/07_ring.py") == "正在检查 work/07_ring.py"
    assert tr("no such message") == "no such message" and tr(None) is None


def test_every_pattern_is_found_with_something_in_it(zh):
    for english, chinese in language.table("zh").items():
        if HOLES.search(english) and "}{" not in english:
            counts = {hole[0] for hole in HOLES.finditer(english)
                      if english.startswith(" thread", hole.end())}
            put_in = {f"{{{i}}}": f"1{i}" if f"{{{i}}}" in counts else f"qz{i}" for i in range(9)}
            filled = HOLES.sub(lambda hole, put_in=put_in: put_in[hole[0]], english)
            wanted = HOLES.sub(lambda hole, put_in=put_in: put_in[hole[0]], chinese)
            assert tr(filled) == wanted, english


def test_an_older_translation_says_so(zh, monkeypatch, tmp_path):
    (tmp_path / "tutorials").mkdir()
    (tmp_path / "messages.po").write_text(
        'msgid "(older than the English text)"\nmsgstr "（此译文早于英文原文）"\n')
    (tmp_path / "tutorials/07.txt").write_text(f"=== head of {digest('new text')}\n新\n")
    for module in (language, text_of_minidl):
        monkeypatch.setattr(module, "folder", lambda language: tmp_path)
    assert translated("07", "head", "new\n text") == "新"  # lines may be broken elsewhere
    assert translated("07", "head", "changed text") == "（此译文早于英文原文）\n新"


def test_columns_of_chinese_are_two_wide(zh):
    assert width("梯度 x") == 6 and padded("梯度", 6) == "梯度  " and padded("梯度", 6, ">") == "  梯度"
    rows = [table.row("no dropout", 1), table.row("a much longer name", 2)]
    lines = table.render(rows).split("\n")
    assert len({width(line[: line.index("|")]) for line in (lines[0], *lines[2:])}) == 1


def test_a_blank_file_has_its_texts_in_chinese_and_is_still_blank(zh, tmp_path):
    with redirect_stdout(io.StringIO()):
        assert exercise.write("02", work=tmp_path) == 0
        assert exercise.write("02", work=tmp_path) == 0  # the same again: not taken for edited
    english = exercise.read(exercise.sources("02")[0])
    text = exercise.read(tmp_path / "02_add3.py")
    assert CHINESE.search(text)
    assert [r.id for r in exercise.regions(text)] == [r.id for r in exercise.regions(english)]
    compile(text, "02_add3.py", "exec")


def test_pictures_keep_english_labels_without_a_chinese_font(zh, monkeypatch, capsys):
    from matplotlib import font_manager

    monkeypatch.setattr(font_manager.fontManager, "ttflist", [])
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [__file__])  # no font
    assert out.labels_in("zh") == {}
    assert "图片标签保持英文" in capsys.readouterr().out


def test_a_font_that_was_installed_since_matplotlib_listed_them_is_found(zh, monkeypatch):
    from matplotlib import font_manager

    sans = font_manager.findfont("DejaVu Sans")
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [])
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [sans])
    monkeypatch.setattr(out, "CHINESE", ("DejaVu Sans",))
    assert out.labels_in("zh")["font.family"][0] == "DejaVu Sans"


def test_labels_are_translated_with_a_chinese_font(zh):
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots()
    axes.set_title("training step")
    with plt.rc_context({"font.family": [out.CHINESE[0], "DejaVu Sans"]}):
        out.translate(figure)
    assert axes.get_title() == "训练步"
    plt.close(figure)


def draw_a_title(plt):
    figure, axes = plt.subplots()
    axes.set_title("training step")
    return figure


@pytest.mark.parametrize("font", ["DejaVu Sans", None])
def test_a_picture_for_the_site_is_drawn_in_each_language_that_has_a_font(
        font, tmp_path, monkeypatch):
    """Whatever the reader's; the English one always. Without a font there is no Chinese one."""
    from matplotlib.figure import Figure

    def titles():
        return {str(path): path.read_text() for path in Path("out").rglob("*.png")}

    monkeypatch.setattr(out, "CHINESE", (font or "no such font",))
    monkeypatch.setattr(out, "script_of", lambda draw: "07_ring.py")
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: path.write_text(
        figure.axes[0].get_title()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIDL_LANG", "en")
    out.picture(Namespace(rank=0), Namespace(slides=False, every_language=True), draw_a_title)
    assert titles() == {
        "out/07_ring.png": "training step", "out/en/07_ring.png": "training step"} | (
        {"out/zh/07_ring.png": "训练步"} if font else {})
    assert language.language() == "en"
    shutil.rmtree("out")
    monkeypatch.setattr(out, "script_of", lambda draw: "99_none.py")  # a script without Chinese
    out.picture(Namespace(rank=0), Namespace(slides=False, every_language=True), draw_a_title)
    assert titles().keys() == {"out/99_none.png", "out/en/99_none.png"}


NAMES = set("tanh eps out log2 loss float float64 float32 softmax layer norm AdamW "
            "center mine syncthreads rank reduce scatter gather "
            "all inf max nat ulp Kahan MiB KiB RoPE log token top "
            "SGD momentum Adam ReLU Xavier LSTM sigmoid tanh rho Blelloch Hoffmann".split())


@pytest.mark.slow
@pytest.mark.parametrize("path", some(TUTORIALS[1:], of=7), ids=lambda path: path.name)
def test_a_picture_has_no_label_in_english(path, zh, tmp_path, monkeypatch):
    """Terms that Chinese lectures leave as they are, and the names in formulas, may stay."""
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    labels = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path), *QUICK[path.stem]] if path.stem in QUICK else
                        [str(path)])
    monkeypatch.setattr(out, "CHINESE", ("DejaVu Sans",))  # no picture is drawn

    def collect(figure, *_, **__):
        for axes in figure.axes:
            for axis in (axes.xaxis, axes.yaxis):
                axis.get_ticklabels()  # made anew, as when it is drawn
        labels.extend(re.sub(r"\$.*?\$", "", text.get_text()) for text in figure.findobj(Text))

    monkeypatch.setattr(Figure, "savefig", collect)
    with pytest.raises(SystemExit), redirect_stdout(io.StringIO()):
        runpy.run_path(str(path), run_name="__main__")
    words = set(re.findall("[A-Za-z]{3,}[0-9]*", without_what_is_behind(" | ".join(labels))))
    assert len(labels) > 10 and not words - NAMES


def test_slides_have_two_panels_of_large_text(tmp_path, monkeypatch, capsys):
    from matplotlib import pyplot as plt

    monkeypatch.chdir(tmp_path)
    figure, panels = plt.subplots(3, 1)
    panels[0].text(0.5, 0.5, "small", fontsize=8)
    seen = []
    save = figure.savefig
    monkeypatch.setattr(figure, "savefig", lambda *args, **settings: (
        seen.append([axes.get_visible() for axes in panels]), save(*args, **settings)))
    out.slides(figure, "07_ring")
    plt.close(figure)
    assert seen == [[True, True, False]] * 2 + [[False, False, True]] * 2
    assert panels[0].texts[0].get_fontsize() == 16
    assert sorted(path.name for path in (tmp_path / "out/slides").iterdir()) == [
        "07_ring-1.png", "07_ring-1.svg", "07_ring-2.png", "07_ring-2.svg"]


@pytest.mark.parametrize("shape", [(1, 4), (4, 1)])
def test_a_slide_has_no_empty_part_where_other_panels_were(shape, tmp_path, monkeypatch):
    """Neither the first two panels of four, nor the last; the next slide has its own again."""
    from matplotlib import pyplot as plt

    shares = []

    def save(figure, *_, bbox_inches, **__):
        """Which share of the slide the panels' data have."""
        areas = [np.prod(axes.get_window_extent().size) for axes in figure.axes
                 if axes.get_visible() and axes.get_label() != "<colorbar>"]
        shares.append(sum(areas) / np.prod(bbox_inches.size) / figure.dpi**2)

    monkeypatch.chdir(tmp_path)
    with plt.rc_context(out.STYLE):
        figure, panels = plt.subplots(*shape, figsize=(8, 8))
        figure.colorbar(panels[0].imshow([[0]], aspect="auto"), ax=panels)
        monkeypatch.setattr(type(figure), "savefig", save)
        out.slides(figure, "07_ring")
        plt.close(figure)
    assert len(shares) == 4 and min(shares) > 0.45, shares


def test_the_waits_of_a_watch_and_the_words_of_tables_are_found():
    """messages.py does not see them: the list of what is behind has them from the sources' data."""
    waits, words = behind.waits_of_a_watch(), behind.words_of_tables()
    assert len(waits) > 5 and all(re.match("(for|to) ", text) for text in waits)
    assert any("{1}" in text for text in waits) and not any("{}" in text for text in waits)
    assert {"column forward", "column flat"} <= set(words) and len(words) > 20


def two_ranks(t, sizes):
    if sizes[t.rank]:
        ring.all_reduce(Watch(t), np.zeros(sizes[t.rank]))


@pytest.mark.parametrize("sizes, error, words", [
    ([9, 0], Deadlock, "死锁：2 个 rank 都无法继续"), ([9, 10], RankFailed, "是不是某个 rank 的最后一批较短？")])
def test_reports_of_simulated_ranks_are_in_chinese(sizes, error, words, zh):
    with pytest.raises(error) as found:
        simulate(2, two_ranks, sizes)
    text = without_what_is_behind(tr(str(found.value)))
    assert words in text and not re.search(r"\b(waits|ended|the ranks|differs|message)\b", text)


def test_a_report_of_several_lines_is_translated_line_by_line(zh):
    text = tr("rank 0: watch: deadlock: rank 0 can never go on.\n"
              "  rank 0 waits for all ranks to begin ring.all_reduce, at a.py:9, for 1.3 s\n"
              "  rank 1 has ended (its last collective: none)\n"
              "  waits for rank 1, which has ended: rank 0 -> rank 1")
    assert text.startswith("rank 0 的监视：发生死锁，") and len(text.split("\n")) == 4
    assert all(CHINESE.search(line) for line in text.split("\n")) and not LEFT.search(text)


def test_what_the_check_form_finds_is_in_chinese(zh):
    """A sentence of each kind that an exercise of 02 or 03 may lead to (cuda/checks)."""
    for line in exercise.read(ROOT / "tests/course/findings.txt").splitlines():
        said = tr(line)
        assert CHINESE.search(said) and not re.search(r"\b[a-z]{2,} [a-z]{2,}\b", said), line
        assert sorted(re.findall(r"\d+", said)) == sorted(re.findall(r"\d+", line)), said


@pytest.mark.parametrize("words, wanted", [
    (["--help"], "命令:"), (["run", "--help"], "位置参数:"), (["run"], "缺少以下参数"),
    (["run", "-n", "x", "a.py"], "错误"), (["check", "--json", "--no"], "无法识别的参数")])
def test_help_and_usage_are_in_chinese(words, wanted, zh, capsys):
    with pytest.raises(SystemExit):
        main.parser().parse_args(words)
    said = "".join(capsys.readouterr())
    assert wanted in said and said.startswith("用法")
    assert not LEFT.search(without_what_is_behind(said))


@pytest.mark.slow
@pytest.mark.mpi
def test_the_end_of_a_run_is_said_in_chinese(tmp_path):
    """A deadlock on real ranks: by the Watch, which has threads of its own, and by the launcher."""
    script = tmp_path / "a.py"
    script.write_text("import numpy as np\nfrom minidl import comm\nt = comm.world()\n"
                      "if t.rank == 0:\n    comm.ring.all_reduce(t, np.zeros(9))\n")
    done = subprocess.run(
        [sys.executable, "-m", "minidl", "run", "-n", "2", script], cwd=tmp_path, text=True,
        capture_output=True, env=os.environ | {"MINIDL_LANG": "zh", "PYTHONPATH": str(ROOT)})
    assert done.returncode and "rank 0 的监视：发生死锁" in done.stderr
    assert not LEFT.search(without_what_is_behind(done.stderr))


@pytest.mark.slow
@pytest.mark.parametrize("path", some(TUTORIALS, of=14), ids=lambda path: path.name)
def test_a_script_prints_nothing_in_english(path, tmp_path):
    ranks = [] if path.name[:2] not in ("00", "07") else ["--sim", "4"]
    done = subprocess.run(
        [sys.executable, path, *ranks], cwd=tmp_path, capture_output=True, text=True, check=True,
        env=os.environ | {"MINIDL_LANG": "zh", "PYTHONPATH": str(ROOT)})
    assert CHINESE.search(done.stdout)
    said = re.sub(r"""b'.*'|b".*\"""", "", done.stdout)  # what a model wrote: bytes, as its corpus
    assert not LEFT.search(without_what_is_behind(said))
    assert Path(tmp_path, "out", path.stem + ".json").exists()


ENGLISH = re.compile(r"\b[a-z]{2,} [a-z]{2,}\b")  # two words of it in a row


def in_english(lines):
    """The English in some lines, but for what is known to be behind. Commands and code, in `...`,
    are in no language."""
    code = re.compile("`.*?`|'minidl.*?'|pip install| (循环|纤程|模板)  .*|^    .*|^minidl [a-z ]+[:：] ?")
    cells = [cell for line in lines for cell in code.sub("", line).split("  ")]
    text = without_what_is_behind(" | ".join(cells))
    return ENGLISH.findall(text) + LEFT.findall(text)


@pytest.mark.parametrize("words", [
    ["kernel", "check", "layer_norm.cu"], ["kernel", "bench", "softmax", "--size", "9", "40"],
    ["kernel", "bench", "adamw"], ["kernel", "run", "none.py"], ["trace", "none.json"]],
    ids=lambda words: " ".join(words[:3]))
def test_what_the_tables_of_kernels_say_is_in_chinese(words, zh, capsys):
    main.main([*words, "--repeats", "1"] if "bench" in words else words)
    said = "".join(capsys.readouterr())
    assert CHINESE.search(said) and not in_english(said.splitlines())


def test_a_kernels_profile_is_in_chinese(zh, tmp_path, capsys):
    script = tmp_path / "a.py"
    script.write_text("import numpy as np\nfrom minidl.cuda import kernel\n"
                      "x, y = np.ones((2, 64), np.float32)\n"
                      "kernel('tour.cu', 'center')(1, 64, (y, x, 64), shared_mem=256)\n")
    assert main.main(["kernel", "run", "--profile", str(script)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("波次" in line for line in lines) and any("读取字节" in line for line in lines)
    assert any("每个 SM 可放" in line and "寄存器" in line for line in lines)
    assert not in_english(lines)


def test_the_report_of_a_profile_is_in_chinese(zh):
    """As the report of two ranks that wait, in every part."""
    rows = dict.fromkeys(summary.ROWS, 0.01)
    ranks = [{"rank": r, "error_s": 1e-6, "drift": 0.0, "gpus": {"cuda:0": 1e-6}, "step_s": 0.12,
              "rows": rows, "late_s": {"1": 0.01},
              "communication": {"total_s": 0.03, "exposed_s": 0.02}} for r in range(2)]
    text = report.text({
        "ranks": ranks, "n_steps": 3, "peak": {}, "shapes_differ": True, "memory": {
            kind: 1000 for kind in KINDS},
        "operators": [{"name": "matmul", "phase": "backward", "dtype": "float64", "s": 0.02,
                       "calls": 2, "flops": 9e6, "bytes": 100, "module": "blocks.0"}],
        "modules": [("(no module)", 0.01, 0.01)],
        "kernels": [{"name": "adamw", "on": "cpu", "s": 0.1, "calls": 1, "bytes": 8}],
        "collectives": [{"name": "ring", "calls": 20, "sent": 99, "peers": [1], "wait_s": 0.01,
                         "moving_s": 0.02, "line": "a.py:3"}]}, tr)
    lines = text.splitlines()
    assert len(text.split("\n\n")) == 7
    assert not in_english(lines)
    heads = [line for line in lines if "毫秒" in line]
    assert len(heads) >= 5 and all(CHINESE.search(line) for line in lines[-3:])
