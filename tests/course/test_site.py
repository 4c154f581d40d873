"""The site's pages: one for each tutorial and technique, and no link that leads nowhere."""

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from minidl.course import book, exercise, language
from minidl.course.student import load
from tests.conftest import whole_form
from tests.profile.test_page import browser

SITE = load(exercise.ROOT / "docs" / "site.py")


@pytest.fixture(scope="module")
def pages():
    return SITE.pages()


def test_every_tutorial_technique_folder_and_document_has_a_page(pages):
    for script in (exercise.ROOT / "tutorials").glob("[0-9][0-9]_*.py"):
        page = pages[f"tutorials/{script.name[:2]}.md"]
        assert page.startswith(f"# {script.name[:2]} ") and "minutes, needs" in page
    map_ = (exercise.ROOT / "docs" / "map.md").read_text()
    rows = [line for line in map_.splitlines() if line.startswith("| ") and "](" in line]
    techniques = [page for page in pages if page.startswith("techniques/")]
    assert len(techniques) == len(rows) > 200
    assert {"index.md", "install.md", "glossary.md", "figures.md", "course/README.md",
            "api/index.md", "api/minidl.comm.md", "kernels.md"} <= set(pages)
    assert not any("questions" in page for page in pages), "those are for teachers"


def test_every_link_leads_to_a_page_and_to_a_place_in_it(pages):
    n = 0
    for page, text in pages.items():
        for place in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```|`[^`\n]*`", "", text,
                                                           flags=re.S)):
            to, _, part = place.removeprefix(SITE.PAGES).partition("#")
            if "://" in to or to.endswith(".png") or not to:
                continue
            base = Path() if place.startswith(SITE.PAGES) else Path(page).parent
            found = (Path("/") / base / to).resolve().relative_to("/").as_posix()
            assert found in pages, f"{page}: {place}"
            if part and "{#" in pages[found]:
                assert f"{{#{part}}}" in pages[found], f"{page}: {place}"
            n += 1
    assert n > 1500


def test_a_technique_has_its_formula_its_files_and_its_tutorial(pages):
    page = pages["techniques/ring-all-reduce.md"]
    assert "any elementwise operation" in page and "(../tutorials/07.md)" in page
    assert "](../api/minidl.comm.md#ring)" in page and "Patarasuk & Yuan 2009" in page
    assert f"]({SITE.PAGES}techniques/ring-all-reduce.md)" in pages["map.md"]


def test_a_page_of_the_book_stands_beside_its_real_one(pages):
    page = pages["book/ring.md"]
    assert page.startswith("# The ring all-reduce: each rank has an array")
    assert "**The plain form**: `minidl/plain/ring.py`" in page
    assert "def reduce_scatter(t, x):" in page and "def reduce_scatter(t: Transport, x: " in page
    assert "[`minidl/comm/ring.py`](../api/minidl.comm.md#ring)" in page
    assert "](book/ring.md)" in pages["book.md"] and "\n```text\nrank 0" not in page  # one picture


def test_the_formulas_of_the_book_stand_in_its_pages_and_are_set(pages):
    formulas = SITE._formulas(exercise.ROOT)
    stories = "\n".join(book.page(name).story for _, names in book.contents() for name, _ in names)
    missing = [written for written in formulas if written not in stories]
    assert len(formulas) > 60 and not missing, f"docs/book_formulas.txt: in no page: {missing}"
    assert r"<td>after the last block:</td><td>\(O = \frac{o}{l}\)</td>" in pages["book/flash.md"]
    assert r"\(S = \frac{Q K^T}{\sqrt{E}}\)" in pages["book/attention.md"]
    assert "```text\nreduce-scatter" in pages["book/ring.md"], "a picture stays as it is"


def test_a_page_of_the_book_is_in_chinese_too(pages):
    page = pages["zh/book/ring.md"]
    assert re.match("# .*[\u4e00-\u9fff]", page) and "[English](../../book/ring.md)" in page
    assert "def reduce_scatter(t, x):" in page
    assert "(book/ring.md)" in pages["zh/book.md"]


def test_the_api_has_signatures_and_no_private_name(pages):
    page = pages["api/minidl.optim.md"]
    assert "**`class AdamW(" in page and "## `adam.py` {#adam}" in page
    assert not re.search(r"\*\*`(?:class )?_", page)


@whole_form
def test_a_broken_link_ends_the_build_and_is_named(monkeypatch):
    read = SITE._read
    monkeypatch.setattr(SITE, "_read", lambda path: read(path) + (
        "See [nothing](nowhere.md).\n" if path.name == "gpu.md" else ""))
    with pytest.raises(SITE.Broken, match="^links that lead nowhere:\ngpu.md: nowhere.md$"):
        SITE.pages()


def only_07(folder):
    """Makes a repository in which 07 is the only numbered tutorial. This saves seconds."""
    for name in ("kernels", "docs"):
        (folder / name).symlink_to(exercise.ROOT / name)
    (folder / "tutorials").mkdir()
    for name in ("07_ring.py", "train_gpt.py"):
        shutil.copy(exercise.ROOT / "tutorials" / name, folder / "tutorials")


def test_a_tutorial_that_was_run_shows_its_picture_and_its_table(tmp_path):
    only_07(tmp_path)
    assert "make docs" in SITE._tutorials(tmp_path)["tutorials/07.md"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "07_ring.png").write_bytes(b"")
    (tmp_path / "out" / "07_ring.json").write_text(
        '[{"quantity": "bytes", "measured": 6, "modelled": null, "theory": 6, "rule": "exact", '
        '"ok": true, "tutorial": ""}]')
    page = SITE._tutorials(tmp_path)["tutorials/07.md"]
    assert "(../out/07_ring.png)" in page and "bytes    | " in page and "make docs" not in page
    assert "- **07a** reduce-scatter" in page


def test_a_chinese_page_shows_a_chinese_picture_or_says_how_to_get_one(tmp_path, monkeypatch):
    only_07(tmp_path)
    (tmp_path / "out" / "zh").mkdir(parents=True)
    (tmp_path / "out" / "07_ring.png").write_bytes(b"of a run in either language")
    page = SITE._translated(tmp_path)["zh/tutorials/07.md"]
    assert "(../../out/07_ring.png)" in page and "fonts-noto-cjk" in page
    (tmp_path / "out" / "zh" / "07_ring.png").write_bytes(b"Chinese")
    page = SITE._translated(tmp_path)["zh/tutorials/07.md"]
    assert "(../../out/zh/07_ring.png)" in page and "fonts-noto-cjk" not in page
    assert SITE.picture_of(tmp_path, "07_ring", "en") == "out/07_ring.png"
    (tmp_path / "out" / "en").mkdir()
    (tmp_path / "out" / "en" / "07_ring.png").write_bytes(b"English")
    assert "(../out/en/07_ring.png)" in SITE._tutorials(tmp_path)["tutorials/07.md"]
    made = SITE._tutorials(tmp_path) | SITE._translated(tmp_path)
    home = SITE._gallery(made, tmp_path, Path("zh"), "zh")
    assert "](tutorials/07.md)" in home and "](../out/zh/07_ring.png)" in home
    assert "](out/en/07_ring.png)" in SITE._gallery(made, tmp_path, Path(), "en")
    monkeypatch.setattr(SITE, "pages", lambda root: {})
    SITE.write(tmp_path / "site", tmp_path)
    shown = tmp_path / "site/pages/out"
    assert (shown / "zh/07_ring.png").exists() and (shown / "en/07_ring.png").exists()


def test_the_chinese_page_of_a_tutorial_has_the_kernels_that_it_names(pages):
    page = pages["zh/tutorials/03.md"]
    for name in ("adamw.cu", "tour.cu"):
        after = page.split(f"`{name}`\n\n```cuda\n")[1].split("```")[0]
        assert re.search("[\u4e00-\u9fff]", after), f"{name}: no comment in Chinese"
    assert "08 及以后的教程目前只有英文版" in pages["zh/lessons.md"]


def test_a_chinese_page_whose_english_has_changed_says_so(tmp_path, monkeypatch):
    for name in ("tutorials", "kernels", "docs"):
        (tmp_path / name).symlink_to(exercise.ROOT / name)
    (tmp_path / "README.md").write_text("# new\n")
    old = f"<!-- README.md of {language.digest('# old')} -->\n# 旧\n"
    page = tmp_path / "README.zh.md"
    assert SITE._dated(old, page, tmp_path) == "（此译文早于英文原文）[English](README.md)\n\n# 旧\n"
    new = f"<!-- README.md of {language.digest('# new')} -->\n# 新\n"
    assert SITE._dated(new, page, tmp_path) == new and SITE._dated("# 新\n", page, tmp_path)
    texts = language.texts
    monkeypatch.setattr(language, "texts", lambda *which: {
        name: ("0" * 12, text) for name, (_, text) in texts(*which).items() if name != "07b"})
    made = SITE._translated(tmp_path)["zh/tutorials/07.md"]
    assert "（此译文早于英文原文）[English](../../tutorials/07.md)" in made
    assert "```text\n（此译文早于英文原文）\n" in made and "Use only t.send" in made


def test_what_goes_on_in_a_list_is_indented_as_mkdocs_wants_it():
    assert SITE.nested("1. a\n   b\n\n   ```\n   c\n   ```\nd\n   e\n") == (
        "1. a\n    b\n\n    ```\n    c\n    ```\nd\n   e\n")


@whole_form
@pytest.mark.slow
@pytest.mark.timeout(400)  # a build takes 10 s on an idle machine, and a browser is started twice
@pytest.mark.skipif(importlib.util.find_spec("material") is None,
                    reason="no MkDocs: pip install 'minidl[docs]'")
def test_mkdocs_builds_it_without_a_warning_and_its_search_finds_both_languages(tmp_path):
    assert SITE.main([]) == 0
    html = exercise.ROOT / "build" / "site" / "html"
    home = (html / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=.?https?:", home), "nothing is fetched"
    index = json.loads((html / "search" / "search_index.json").read_text(encoding="utf-8"))
    cut = re.compile(index["config"]["separator"])
    words = {word for doc in index["docs"] for word in cut.split(doc["text"] + " " + doc["title"])}
    assert {"all", "reduce", "recompute", "梯度", "张量", "并行", "流水线"} <= words
    if browser:
        for term, page in ("recompute", "techniques/recompute"), ("梯度", "zh/tutorials/0"):
            done = subprocess.run(
                [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
                 "--virtual-time-budget=60000", f"--user-data-dir={tmp_path}",
                 f"file://{html}/index.html?q={term}"], capture_output=True, text=True, timeout=200)
            found = done.stdout.partition("md-search-result__list")[2]
            assert page in found, done.stderr[-2000:]
