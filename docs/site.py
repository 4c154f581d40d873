"""The site, `make docs`: pages from what is there, and HTML from the pages by MkDocs.

    README.md, docs/*.md            a page each; the README is the home
    minidl/plain/*.py               the book: a page each, beside the code of its real one; also in
                                    Chinese, if docs/zh/book.txt has it
    docs/map.md                     a page for each row: a technique, its formula, its files
    minidl/**/*.py                  the API reference: docstrings and signatures, a page a folder
    tutorials/*.py                  a page each, with out/en/NN_name.png and out/NN_name.json where
                                    `make tutorials` ran them; in Chinese with out/zh/NN_name.png
    kernels/README.md, *.cu         the kernels, with the comment at the head of each

Nothing is written twice: a link to a source leads to its page, one to a test is plain text, and one
to what does not exist ends the build. So does every warning of MkDocs (--strict).

    python docs/site.py             writes build/site/html; `--pages` stops before MkDocs

Test: tests/course/test_site.py
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from minidl.course import book, exercise, language, table
from minidl.course.comments import in_language, kernels_named
from minidl.text import width

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = "docs/course/questions", "docs/course/outlines"  # for teachers
PAGES = "page://"  # before a link that is one of the site's already
TITLES = {"index": "Home", "book": "The book", "install": "Install", "tutorials": "Tutorials",
          "map": "Techniques",
          "api/index": "API", "kernels": "Kernels", "course/README": "Teaching",
          "glossary": "Glossary", "figures": "Figures"}


CHINESE = {"index": "首页", "book": "书", "install": "安装", "lessons": "中文教程", "tutorials": "教程与练习",
           "glossary": "英汉术语表"}
REST_IS_ENGLISH = "08 及以后的教程目前只有英文版：[Tutorials](../tutorials.md)。"
# below a picture that was not drawn in Chinese for certain
ENGLISH_LABELS = ("图中的文字若是英文：在装有中文字体的机器上（`sudo apt install fonts-noto-cjk`，或把字体"
                  "文件放进 `~/.local/share/fonts`）运行 `make tutorials`，再运行 `make docs`，这里就会"
                  "换成中文图。")
AT_HOME = "03", "06", "07"  # whose pictures are: kernels, counters, ranks
KINDS = "File", "Kernel", "Test", "Tutorial", "Source", "Plain form"  # cells of the map


class Broken(Exception):
    """A link leads nowhere; the message names each."""


def slug(text):
    return re.sub(r"\W+", "-", re.sub(r"[`*\\]", "", text).lower()).strip("-")[:60].strip("-")


def anchor(path):
    """The place of a module on the page of its folder."""
    return path.stem.strip("_") if path.stem == "__init__" else path.stem


def target(path, root=ROOT):
    """The page that stands for a file of the repository, with its anchor; None: it has none."""
    path = path.relative_to(root)
    name, parts = path.as_posix(), path.parts
    if name.startswith(LEFT_OUT):
        return None
    if name in ("README.md", "README.zh.md"):
        return "index.md" if name == "README.md" else "zh/index.md"
    if parts[0] == "docs" and path.suffix in (".md", ".png"):
        return path.relative_to("docs").as_posix()
    if parts[0] == "tutorials" and len(parts) == 2 and (
            re.match(r"\d\d_", path.name) or path.name == "train_gpt.py"):
        return f"tutorials/{short(path)}.md"
    if parts[0] == "kernels" and path.suffix in (".md", ".cu") and len(parts) == 2:
        return "kernels.md" + (f"#{path.stem}" if path.suffix == ".cu" else "")
    if parts[:2] == ("minidl", "plain") and path.suffix and path.stem != "__init__":
        return f"book/{path.stem}.md"
    if parts[0] == "minidl" and path.suffix in (".py", ""):
        folder = path.parent if path.suffix else path
        return f"api/{'.'.join(folder.parts)}.md" + (f"#{anchor(path)}" if path.suffix else "")
    return None


def short(path):
    """07 of 07_ring.py, train_gpt of train_gpt.py."""
    return path.stem[:2] if path.stem[:2].isdigit() else path.stem


def nested(text):
    """Four spaces where an item of a numbered list goes on: Python's Markdown wants them."""
    lines, inside = text.splitlines(), False
    for i, line in enumerate(lines):
        inside = bool(re.match(r"\d+\. ", line)) or inside and line[:3] in ("", "   ")
        lines[i] = " " + line if inside and line[:3] == "   " else line
    return "\n".join(lines) + "\n"


def relinked(text, folder, page, broken, root=ROOT):
    """Markdown of a file in `folder` as the page `page`: its links lead to pages."""
    text = nested(text)
    def link(found):
        image, words, place = found.groups()
        if "://" in place or place.startswith("#"):
            return found[0]
        name, _, part = place.partition("#")
        file = (folder / name).resolve()
        if not file.exists():
            if file.suffix != ".png":  # the picture of a run that was not made yet
                broken.append(f"{page}: {place}")
            return words
        to = target(file, root)
        if to is None:
            return words
        to = os.path.relpath(to, Path(page).parent)
        return f"{image}[{words}]({to}{'#' + part if part and '#' not in to else ''})"

    return re.sub(r"(!?)\[((?:[^][]|\\.|\[[^]]*\])*?)\]\(([^)\s]+)\)", link, text)


def pages(root=ROOT):
    """{page: Markdown} of the whole site; Broken where a link leads nowhere."""
    made, broken = {}, []
    made["index.md"] = relinked(_read(root / "README.md"), root, "index.md", broken, root)
    for file in sorted((root / "docs").rglob("*.md")):
        if not (page := target(file, root)):
            continue
        text = _read(file)
        if file.name == "map.md":
            text, rows = _rows(text)
            made |= _techniques(rows, root, broken)
        made[page] = relinked(_dated(text, file, root), file.parent, page, broken, root)
    home = root / "README.zh.md"
    if home.exists():
        made["zh/index.md"] = relinked(_dated(_read(home), home, root), root, "zh/index.md", broken,
                                       root)
    made |= _book(root) | _api(root) | _tutorials(root) | _translated(root)
    for page, name in ("index.md", "en"), ("zh/index.md", "zh"):
        if page in made:
            made[page] += _gallery(made, root, Path(page).parent, name)
    kernels = relinked(_read(root / "kernels/README.md"), root / "kernels", "kernels.md", broken,
                       root)
    for file in sorted((root / "kernels").glob("*.cu")):
        head = re.match(r"(?://.*\n)+", _read(file))
        words = re.sub(r"^// ?", "", head[0], flags=re.M) if head else ""
        kernels += f"\n## {file.name} {{#{file.stem}}}\n\n{_fenced(words)}"
    made["kernels.md"] = kernels
    if broken:
        raise Broken("links that lead nowhere:\n" + "\n".join(broken))
    return made


def _read(path):
    return path.read_text(encoding="utf-8")


def _dated(text, file, root):
    """Returns a page. Adds a note to a Chinese page if its English page has changed since."""
    first, _, rest = text.partition("\n")
    found = re.fullmatch(r"<!-- (\S+) of ([0-9a-f]{12}) -->", first)
    if not found or found[2] == language.digest(_read(root / found[1])):
        return text
    return f"{_older()}[English]({os.path.relpath(root / found[1], file.parent)})\n\n{rest}"


def _older():
    with language.spoken("zh"):
        return language.tr("(older than the English text)")


def _fenced(text):
    return f"```text\n{text.rstrip()}\n```\n"


# -- a page a technique


def _rows(text):
    """The map with a link on each concept; {page: (concept, the row's other cells, section)}."""
    rows, lines, section = {}, [], ""
    for line in text.splitlines():
        section = line[3:] if line.startswith("## ") else section
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] * (line[:2] == "| ")
        if cells and cells[0] != "concept" and "](" in line:
            concept = re.sub(r"\[([^]]*)\]\([^)]*\)|\*\*", r"\1", cells[0])
            page = f"techniques/{slug(concept)}.md"
            while page in rows:
                page = page.replace(".md", "-2.md")
            rows[page] = (concept, line.strip("| ").split("|")[1:], section)
            line = line.replace(cells[0], f"[{concept}]({PAGES}{page})", 1)
        lines.append(line)
    return "\n".join(lines), rows


def _techniques(rows, root, broken):
    made = {}
    for page, (concept, cells, section) in rows.items():
        cells = [cell.strip() for cell in cells] + [""] * 6
        parts = [f"# {concept[0].upper()}{concept[1:]}\n", f"*{section.split(' (')[0]}*\n"]
        files = re.findall(r"\]\(([^)]+)\)", cells[0])
        for word, cell in zip(KINDS, cells, strict=False):
            if word == "Tutorial":
                numbers = {short(f): f for f in _scripts(root)}
                cell = re.sub(r"\b(\d\d)\b", lambda n, of=numbers: f"[{n[1]}](../tutorials/"
                              f"{of[n[1]].name})" if n[1] in of else n[1], cell)
            if cell:
                parts.append(f"- **{word}**: {cell}")
        for name in files:
            file = (root / "docs" / name).resolve()
            if file.suffix == ".py" and file.exists():
                doc = ast.get_docstring(ast.parse(_read(file))) or ""
                parts.append(f"\n## {file.relative_to(root).as_posix()}\n\n{_fenced(doc)}")
        made[page] = relinked("\n".join(parts), root / "docs", page, broken, root)
    return made


# -- the book

BESIDE = {"en": ("The plain form", "The real one", "adds"),
          "zh": ("最简形式", "真实的实现", "增加了")}


def _book(root):
    """A page for each of minidl/plain: its text, then its code beside the code of the real one."""
    made = {}
    pages = [book.page(name, root) for _, names in book.contents(root) for name, _ in names]
    for i, here in enumerate(pages):
        near = " · ".join([*[f"[← {p.name}]({p.name}.md)" for p in pages[:i][-1:]],
                           *[f"[{p.name} →]({p.name}.md)" for p in pages[i + 1:][:1]]])
        made[f"book/{here.name}.md"] = "\n".join([
            f"# {here.title}\n", _story(here.story, root), _beside(here, root, "en"), near]) + "\n"
    return made | _chinese_book(pages, root)


def _story(text, root):
    """Paragraphs are text; what is indented is a picture, or, if it has formulas and no lines that
    are drawn, a table of their parts."""
    formulas = _formulas(root)
    parts = re.split(r"\n\n((?:    .*\n|\n)*    .*)(?=\n\n|\Z)", f"\n\n{text}")
    for i, part in enumerate(parts):
        if not i % 2:
            parts[i] = _set(part, formulas)
        elif _set(part, formulas) == part or re.search("[\u2500-\u257f\u25a0]", part):
            picture = "\n".join(line[4:] for line in part.split("\n"))
            parts[i] = f"\n\n```text\n{picture}\n```"
        else:
            parts[i] = f"\n\n{_table(part, formulas)}"
    return "".join(parts).strip("\n") + "\n"


def _formulas(root):
    """{how a page writes a formula: its LaTeX}, the longest first."""
    pairs = [line.split(" => ") for line in _read(root / "docs/book_formulas.txt").splitlines()
             if line and line[0] != "#"]
    return dict(sorted(pairs, key=lambda pair: -len(pair[0])))


def _set(text, formulas):
    r"""The text with \(LaTeX\) in place of each formula; `write` makes MathML of that."""
    pattern = "|".join(rf"(?<![\w*]){re.escape(written)}(?!\w)" for written in formulas)
    return re.sub(pattern, lambda found: rf"\({formulas[found[0]]}\)", text)


def _table(block, formulas):
    """Lines whose parts stand in two or three columns, as a table: a line with one part goes on
    under the column at which it begins. Other lines stay lines."""
    rows = []  # [column, text] of each part
    any_formula = "|".join(map(re.escape, formulas))
    for line in block.split("\n"):
        whole = re.sub(any_formula, lambda found: found[0].replace("  ", "\0 "), line)
        parts = [[width(line[:found.start()]), found[0].replace("\0", " ")]
                 for found in re.finditer(r"\S+(?: \S+)*", whole)]
        if len(parts) == 1 and rows and parts[0][0] > 4:
            near = min(rows[-1], key=lambda part: abs(part[0] - parts[0][0]))
            is_formula = _set(parts[0][1], formulas) != parts[0][1]
            near[1] = language.unbroken(near[1] + ("<br>" if is_formula else "\n") + parts[0][1])
        elif parts:
            rows.append(parts)
    if len({column for row in rows for column, _ in row}) > 3:
        lines = [_set(_escaped(line[4:]), formulas) for line in block.split("\n")]
        return f'<pre class="formulas">{"<br>".join(lines)}</pre>'
    lines = ["".join(f"<td>{_set(_escaped(text), formulas)}</td>" for _, text in row)
             for row in rows]
    table = "".join(f"<tr>{line}</tr>" for line in lines).replace("\n", " ")
    return f'<table class="formulas">{table}</table>'


def _escaped(text):
    return text.replace("&", "&amp;").replace("<br>", "\0").replace("<", "&lt;").replace(
        "\0", "<br>").replace("&lt;-", "<-")


def _beside(here, root, kind):
    plain, real, adds = BESIDE[kind]
    up = "../" * (2 if kind == "en" else 3)
    columns = [f"**{plain}**: `{book.BOOK}/{here.name}.py`\n\n```python\n{here.code}\n```"]
    for file, code in book.same_names(here, root):
        api = f"{up[3:]}{target(root / file, root)}"
        columns.append(f"**{real}**: [`{file}`]({api})\n\n```python\n{code}\n```")
    boxes = [f"<div markdown>\n\n{column}\n\n</div>\n" for column in [
        columns[0], "\n\n".join(columns[1:])]]
    told = f"**{real}** {adds}: {here.adds}\n" if kind == "en" else ""
    return f'{told}\n<div class="beside" markdown>\n\n{"".join(boxes)}\n</div>\n'


def _chinese_book(pages, root):
    """The pages whose title and text are in docs/zh/book.txt, and their list."""
    found, made = language.parts_of(language.folder("zh") / "book.txt"), {}
    for here in (page for page in pages if page.name in found):
        of, text = found[here.name]
        title, _, story = text.partition("\n")
        older = "" if of == language.digest(book.told(here)) else _older()
        made[f"zh/book/{here.name}.md"] = "\n".join([
            f"# {title}\n", f"{older}[English](../../book/{here.name}.md)\n",
            _story(language.unbroken(story.strip("\n")), root), _beside(here, root, "zh")])
    if made:
        listed = "\n".join(f"- [{text.splitlines()[0][2:]}](book/{Path(page).name})"
                           for page, text in made.items())
        made["zh/book.md"] = f"# 书：每种技术的最简形式\n\n{listed}\n"
    return made


# -- the API


def _api(root):
    made, names = {}, []
    for folder in sorted({f.parent for f in (root / "minidl").rglob("*.py")}):
        name = ".".join(folder.relative_to(root).parts)
        parts = [f"# {name}\n"]
        for file in sorted(folder.glob("*.py")):
            tree = ast.parse(_read(file))
            parts.append(f"## `{file.name}` {{#{anchor(file)}}}\n")
            if doc := ast.get_docstring(tree):
                parts.append(_fenced(doc))
            for node in tree.body:
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name[0] != "_":
                    parts += _definition(node)
        names.append(name)
        made[f"api/{name}.md"] = "\n".join(parts) + "\n"
    listed = "\n".join(f"- [{name}]({name}.md)" for name in names)
    made["api/index.md"] = f"# API\n\nThe folders; a module is a section.\n\n{listed}\n"
    return made


def _definition(node, owner=""):
    """Signature and docstring of a function, or of a class and its public methods."""
    is_class = isinstance(node, ast.ClassDef)
    given = ", ".join(map(ast.unparse, node.bases)) if is_class else ast.unparse(node.args)
    given = re.sub(r"^(self|cls)(, |$)", "", given) if owner else given
    yield f"**`{'class ' * is_class}{owner}{node.name}({given})`**\n"
    if doc := ast.get_docstring(node):
        yield _fenced(doc)
    for inside in node.body if is_class else ():
        if isinstance(inside, ast.FunctionDef) and inside.name[0] != "_":
            yield from _definition(inside, f"{node.name}.")


# -- a page a tutorial


def _scripts(root):
    return [*sorted((root / "tutorials").glob("[0-9][0-9]_*.py")), root / "tutorials/train_gpt.py"]


def picture_of(root, name, language):
    """The picture of a tutorial that `make tutorials` made in this language; else that of a run in
    any; None: it was not run."""
    places = f"out/{language}/{name}.png", f"out/{name}.png", f"out/en/{name}.png"
    return next((place for place in places if (root / place).exists()), None)


def _gallery(made, root, folder, language):
    """The pictures of the home page, of tutorials that were run, each with its title and a link."""
    parts = []
    for number in AT_HOME:
        page = (folder / "tutorials" / f"{number}.md").as_posix()
        for script in (root / "tutorials").glob(f"{number}_*.py"):
            picture = picture_of(root, script.stem, language)
            if picture and page in made:
                title, up = made[page].partition("\n")[0][2:], "../" * len(folder.parts)
                parts.append(f"[{title}](tutorials/{number}.md)\n\n![{title}]({up}{picture})\n")
                parts += [f"*{ENGLISH_LABELS}*\n"] * (language == "zh" and "/zh/" not in picture)
    heading = {"en": "Pictures that tutorials draw", "zh": "教程画出的图"}[language]
    return "\n".join([f"\n## {heading}\n", *parts]) if parts else ""


def _tutorials(root):
    made, exercises = {}, exercise.tutorials(root)
    for file in _scripts(root):
        text, name = _read(file), short(file)
        title, _, story = ast.get_docstring(ast.parse(text)).partition("\n")
        title, _, needs = re.sub(r"\s{2,}(\d+ minutes)", r"\n\1", title).partition("\n")
        parts = [f"# {' '.join(title.split()).rstrip('.')}\n", f"*{needs}*\n" * bool(needs)]
        report = root / "out" / f"{file.stem}.json"
        if picture := picture_of(root, file.stem, "en"):
            parts.append(f"![What {file.name} draws](../{picture})\n")
        # paragraphs are text, what is indented stays as it is: Markdown's code
        parts.append(story + "\n")
        if report.exists():
            parts += ["## Measured beside theory\n", _fenced(table.render(table.load(report)))]
        else:
            parts.append(f"Run it, then `make docs` again, for its picture and its table here:\n"
                         f"`minidl run -n 4 tutorials/{file.name}`.\n")
        if name in exercises:
            parts.append("## Exercises\n")
            for source in exercises[name]:
                parts += [f"- **{r.id}** {r.title}" for r in exercise.regions(_read(source))]
            parts.append(f"\n`minidl exercise {name}` writes them blank, `minidl check {name}` "
                         f"grades them, `minidl notebook {name}` makes a notebook of the script.\n")
        made[f"tutorials/{name}.md"] = "\n".join(parts) + "\n"
    return made


def _translated(root):
    """The tutorials' pages in Chinese, from the texts that the scripts themselves show, with the
    script, its exercises blank: those who read no English read it here."""
    with language.spoken("zh"):  # the table, too, and the script's comments
        made = _chinese_tutorials(root)
    if made:
        listed = "\n".join(f"- [{text.splitlines()[0][2:]}](tutorials/{Path(page).name})"
                           for page, text in made.items())
        made["zh/lessons.md"] = f"# 中文教程\n\n{listed}\n\n{REST_IS_ENGLISH}\n"
    return made


def _chinese_tutorials(root):
    made, exercises = {}, exercise.tutorials(root)
    for file in _scripts(root):
        if "head" not in (found := language.texts(short(file), "zh")):
            continue
        title, _, story = found["head"][1].partition("\n")
        title, needs = re.split(r"\s{2,}(?=\d+ 分钟)", title)
        english = _read(file).split('"""')[1]
        older = "" if found["head"][0] == language.digest(english) else _older()
        parts = [f"# {title}\n\n*{needs}*\n\n"
                 f"{older}[English](../../tutorials/{short(file)}.md)\n"]
        if picture := picture_of(root, file.stem, "zh"):
            parts.append(f"![{title}](../../{picture})\n")
            parts += [f"*{ENGLISH_LABELS}*\n"] * ("/zh/" not in picture)
        parts.append(language.unbroken(story) + "\n")
        if (report := root / "out" / f"{file.stem}.json").exists():
            parts += ["## 实测与理论对照\n", _fenced(table.render(table.load(report)))]
        else:
            parts.append("先运行 `make tutorials`，再运行 `make docs`，这里就会有它的图和表。\n")
        sources = exercises.get(short(file), [])
        parts += ["## 练习\n"] * bool(sources)
        for source in sources:
            for r in exercise.regions(text := _read(source)):
                lines, mark = exercise.task(text, r)
                task = "\n".join(line.strip()[len(mark):][1:] for line in lines)
                task = language.translated(short(file), r.id, task)
                parts.append(f"### {r.id}：{language.tr(r.title)}\n\n{_fenced(task)}")
        parts.append("## 程序\n")
        for source in sources or [file]:
            code = in_language(exercise.blank(_read(source)))
            code = code if source.suffix == ".cu" else code.split('"""', 2)[2].lstrip()
            kind = "python" if source.suffix == ".py" else "cuda"
            parts.append(f"`{source.name}`\n\n```{kind}\n{code.rstrip()}\n```\n")
        named = [path for path in kernels_named(_read(file)) if path.name not in
                 [source.name for source in sources]]
        parts += ["## 文中提到的 kernel\n"] * bool(named)
        for path in named:
            parts.append(f"`{path.name}`\n\n```cuda\n{in_language(_read(path)).rstrip()}\n```\n")
        made[f"zh/tutorials/{short(file)}.md"] = "\n".join(parts) + "\n"
    return made


# -- MkDocs


def write(folder, root=ROOT):
    """All pages, the pictures and mkdocs.yml into `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    made = pages(root)
    for page, text in made.items():
        path = folder / "pages" / page
        path.parent.mkdir(parents=True, exist_ok=True)
        up = "../" * (len(Path(page).parts) - 1)
        text = re.sub(r"\\\((.+?)\\\)", _mathml, text) if "book/" in page else text
        path.write_text(text.replace(f"({PAGES}", f"({up}"), encoding="utf-8")
    for place in "docs", "out", "out/en", "out/zh":
        for picture in (root / place).glob("*.png"):
            to = folder / "pages" / place.removeprefix("docs")
            to.mkdir(parents=True, exist_ok=True)
            shutil.copy(picture, to)
    first = [f"  - {title}: {page}.md\n" for page, title in TITLES.items() if f"{page}.md" in made]
    others = [page for page in sorted(made) if "/" not in page and page[:-3] not in TITLES]
    more = "".join(f"    - {page}\n" for page in others)
    zh = "".join(f"    - {title}: zh/{page}.md\n" for page, title in CHINESE.items()
                 if f"zh/{page}.md" in made)
    config = CONFIG.format(nav="".join(first) + ("  - More:\n" + more if more else "")
                           + ("  - 中文:\n" + zh if zh else ""))
    (folder / "pages" / "wide.css").write_text(WIDE, encoding="utf-8")
    (folder / "pages" / "focus.js").write_text(FOCUS, encoding="utf-8")
    (folder / "pages" / "shim.js").write_text(SHIM, encoding="utf-8")
    (folder / "theme").mkdir(exist_ok=True)
    (folder / "theme" / "main.html").write_text(LAYOUT, encoding="utf-8")
    (folder / "mkdocs.yml").write_text(config, encoding="utf-8")
    return made


def _mathml(found):
    from latex2mathml.converter import convert  # of the extra docs

    return convert(found[1])


# docstrings have lines of 100 columns
WIDE = """.md-grid { max-width: 78rem }
.md-typeset pre > code { font-size: .6rem }
.md-tabs__link { opacity: 1 }
.md-typeset table:not([class]) { font-size: .66rem }
.md-typeset :is(p, li, td) a { text-decoration: underline }
:root, [data-md-color-scheme] {
  --md-code-hl-comment-color: #5c6370; --md-code-hl-operator-color: #5c6370;
  --md-code-hl-punctuation-color: #5c6370 }
[data-md-color-scheme="slate"] {
  --md-code-hl-comment-color: #b0b4c0; --md-code-hl-operator-color: #b0b4c0;
  --md-code-hl-punctuation-color: #b0b4c0; --md-code-hl-number-color: #f0a097;
  --md-code-hl-constant-color: #b3a7f2 }
[data-md-color-scheme="slate"][data-md-color-primary] { --md-typeset-a-color: #8ab4ff }
/* the book: the plain form beside the real one, below each other where there is no room */
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); gap: 0 1rem }
.beside > div { min-width: 0 }
pre.formulas { font-size: .64rem; line-height: 2; white-space: pre-wrap }
table.formulas td { padding: .2em 1.2em .2em 0; vertical-align: top }
math { font-size: 1.1em }
/* where a page has no headings, its tables get the room of their list */
.md-main__inner:not(:has(.md-sidebar--secondary li)) .md-sidebar--secondary { display: none }
@media (max-width: 44em) { .md-code__nav { display: none } }  /* it would cover the code */
"""

# long lines of code and wide tables are scrolled by the keyboard, too; the search has a name, and a
# page its language
FOCUS = """addEventListener("load", () => {
  document.querySelectorAll("pre > code, .md-typeset__scrollwrap").forEach((wide) => {
    wide.tabIndex = 0;
  });
  document.querySelector(".md-search").setAttribute("aria-label", "Search");
  if (location.pathname.includes("/zh/")) document.documentElement.lang = "zh";
});
"""

# A browser starts no Worker from a disk. There an iframe runs the search, by its script's own
# rules: it looks for `IFrameWorker` in its parent, and waits for importScripts. (The theme's own
# way fetches a script from another host, which this takes the place of.)
SHIM = """if (location.protocol === "file:") window.Worker = window.IFrameWorker =
  class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];  // what is sent before the script is there
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      const inside = frame.contentWindow;
      const run = (url) => new Promise((done, failed) => {
        const script = inside.document.createElement("script");
        Object.assign(script, { src: url, onload: done, onerror: failed });
        inside.document.body.append(script);
      });
      inside.importScripts = (...urls) => urls.reduce((last, url) => last.then(() => run(url)),
                                                      Promise.resolve());
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.tell = (data) => inside.dispatchEvent(new inside.MessageEvent("message", { data }));
      run(new URL(url, location)).then(() => {
        this.waiting.forEach(this.tell);
        this.waiting = { push: this.tell };
      });
    }
    postMessage(data) { this.waiting.push(data); }
  };
"""

LAYOUT = """{% extends "base.html" %}
{% block libs %}<script src="{{ 'shim.js' | url }}"></script>{% endblock %}
"""

CONFIG = """site_name: minidl
docs_dir: pages
site_dir: html
use_directory_urls: false      # the pages open from a disk, too
theme:
  name: material
  custom_dir: theme
  font: false                  # nothing is fetched
  features: [navigation.tabs, navigation.top, toc.follow, content.code.copy]
  palette:
    - media: "(prefers-color-scheme: light)"
      scheme: default
      primary: indigo
      toggle: {{icon: material/weather-night, name: dark}}
    - media: "(prefers-color-scheme: dark)"
      scheme: slate
      primary: indigo
      toggle: {{icon: material/weather-sunny, name: light}}
plugins:
  - search: {{lang: [en, zh], separator: '[\\s\u200b\\-]+'}}  # jieba puts \\u200b between words
  - offline                    # search works from a disk, by shim.js
markdown_extensions:
  [attr_list, md_in_html, tables, pymdownx.superfences, {{toc: {{toc_depth: 2}}}}]
extra_css: [wide.css]
extra_javascript: [focus.js]
extra: {{generator: false}}      # its line is too pale to read
validation:
  omitted_files: ignore        # techniques and modules are reached from their lists
  not_found: warn
  anchors: warn
  unrecognized_links: warn
nav:
{nav}"""


def main(arguments):
    folder = ROOT / "build" / "site"
    try:
        made = write(folder)
    except Broken as error:
        print(f"docs/site.py: {error}", file=sys.stderr)
        return 1
    print(f"{len(made)} pages in {folder / 'pages'}", flush=True)
    if "--pages" in arguments:
        return 0
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file",
               str(folder / "mkdocs.yml")]
    status = subprocess.run(command, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}).returncode
    if not status:
        print(f"open {folder / 'html' / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
