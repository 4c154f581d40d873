"""Lists Chinese texts that are out of date. English may change first, and no test fails then.

    make register ARGS=--list      prints the list; continuous integration prints it, too

A message or a comment without Chinese is shown in English. If a head, a task or a page is older
than its English, its first line says it. After you translate one, write the digest of its English
by `make register ARGS="--translated FILE"`.

    docs/zh/messages.po            messages of the commands, of the tutorials with Chinese and of
                                   their graders
    docs/zh/comments.po            comments of these tutorials and of the kernels that they name
    docs/zh/tutorials/NN.txt       their heads and tasks: whole texts, with digests
    docs/zh/book.txt               the texts of the pages of minidl/plain, with digests
    README.zh.md, docs/zh/*.md     pages, with digests
"""

import functools
import re

from minidl import memory
from minidl.course import book, comments, exercise, language
from minidl.course.language import digest
from minidl.cuda.checks import profile
from minidl.profile import advice, summary
from minidl.text import ROOT
from tests.course.messages import messages

TUTORIALS = [path for number in ("0[0-7]", "28", "29", "30", "31", "32", "33")  # those with Chinese
             for path in sorted((ROOT / "tutorials").glob(f"{number}_*.py"))]
SHOWN = [*TUTORIALS, *(ROOT / "tutorials/graders" / path.name for path in TUTORIALS[1:]),
         *(ROOT / "minidl" / name for name in (
             *(f"comm/observe/{name}.py" for name in ("lookout", "waits", "watch", "signature",
                                                      "stragglers")),
             "comm/transport/scheduler.py", "comm/transport/abort.py", "cli/supervisor.py",
             "cli/rank.py", "cli/restarts.py", "course/exercise.py",
             "course/grade.py", "course/handout.py", "course/student.py", "course/tutorial.py",
             "course/table.py", "course/out.py", "course/report.py", "course/notebook.py",
             "course/renamed.py",
             "cli/doctor.py", "cli/main.py", "cli/launcher.py", "cli/plan.py",
             "cli/profiler.py", "cli/kernel_bench.py", "profile/report.py", "profile/advice.py",
             "profile/summary.py", "cuda/tool.py", "cuda/nvrtc.py", "cuda/checks/profile.py",
             "cuda/checks/occupancy.py",
             "parallel/model/plan_text.py", "parallel/model/planner.py"))]
SCRIPTS = list(dict.fromkeys([*TUTORIALS, *(
    kernel for path in TUTORIALS
    for kernel in [*exercise.tutorials().get(path.name[:2], [path])[1:],
                   *comments.kernels_named(exercise.read(path))])]))
STAMP = re.compile(r"<!-- (\S+) of ([0-9a-f]{12}|here) -->")  # here: the page has no English
PAGES = [ROOT / "README.zh.md", *sorted((ROOT / "docs/zh").glob("*.md"))]
BOOK = "docs/zh/book.txt"
HOLES = re.compile(r"\{\d\}")


def parts(path, text):
    """Returns {"head": ..., "07a": ...}: the texts of a tutorial or a kernel that are translated as
    a whole."""
    found = {"head": text.split('"""')[1]} if path.suffix == ".py" else {}
    for region in exercise.regions(text, path):
        lines, mark = exercise.task(text, region)
        found[region.id] = "\n".join(line.strip()[len(mark):][1:] for line in lines)
    return found


def english(name, text):
    """Returns the English texts of a file whose digest a Chinese text may have: the page or its
    parts."""
    path = ROOT / name
    if path.suffix == ".md":
        return [text]
    if path.parent == ROOT / book.BOOK and path.stem != "__init__":
        return [book.told(book.page_of(path.stem, text))]
    is_tutorial = path.parent == ROOT / "tutorials" and path.name[:2].isdigit()
    return list(parts(path, text).values()) if is_tutorial or path.suffix == ".cu" else []


def of_tutorial(path):
    """Returns the same for a tutorial and its kernels."""
    found = {}
    for file in exercise.tutorials().get(path.name[:2], [path]):
        found |= parts(file, exercise.read(file))
    return found


def waits_of_a_watch():
    """Returns the texts of watch.py that have {} in the source. They are filled for a report."""
    source = exercise.read(ROOT / "minidl/comm/observe/watch.py")
    found = re.findall(r'(?:what = |, \[\], |inner, \[\], )\("((?:for|to) [^"]+)"', source)
    joined = re.search(r'what = \("(for [^"]+)" \+ text', source)[1]
    found = [text for text in found if not text.endswith(" ")]
    found.append(joined + next(text for text in found if text.startswith("to send")))
    texts = []
    for text in found:
        pieces = re.split(r"\{:?,?\}", text)
        texts.append("".join(f"{piece}{{{i}}}" for i, piece in enumerate(pieces[:-1])) + pieces[-1])
    return texts


def words_of_tables():
    """Returns words that tables of kernels and profiles hold as data. messages.py does not find
    them."""
    words = {*summary.ROWS, *summary.ROW_OF, *memory.KINDS, *profile.WHAT, "flat", "fibre"}
    words -= {"message", "wait", "collective", "branch"}  # no operator has these
    sentences = [text.replace("{}", "{0}") for _, _, text in advice.SIMPLE]
    return [*(f"column {word}" for word in sorted(words)), *sentences]


@functools.cache
def messages_of(path):
    return tuple(messages(exercise.read(path)))


def messages_shown():
    """Returns {source: the messages that it shows}."""
    found = {path: list(messages_of(path)) for path in SHOWN}
    found[ROOT / "minidl/comm/observe/watch.py"] += waits_of_a_watch()
    found[ROOT / "minidl/profile/summary.py"] += words_of_tables()
    for path in SCRIPTS:  # the title of an exercise
        titles = [r.title for r in exercise.regions(exercise.read(path)) if " " in r.title]
        found.setdefault(path, []).extend(titles)
    return found


def comments_shown():
    """Returns {script: its comments and docstrings}."""
    return {path: [c.text for c in comments.comments(exercise.read(path))] for path in SCRIPTS}


def behind():
    """Returns [(file to edit, what it lacks)]."""
    return [*messages_behind(), *comments_behind(), *texts_behind(), *book_behind(),
            *pages_behind()]


def messages_behind():
    known = {*language.table("zh"), *language.table("zh", "comments")}
    return [("docs/zh/messages.po", f"no Chinese of {text!r} ({path.relative_to(ROOT)})")
            for path, texts in messages_shown().items()
            for text in dict.fromkeys(texts) if text not in known]


def comments_behind():
    known, shown = comments.known("zh"), comments_shown()
    printed = {digest(text) for text in language.table("zh")}
    heads = {digest(text) for path in TUTORIALS for text in of_tutorial(path).values()}
    found = [("docs/zh/comments.po", f"no Chinese of {text!r} ({path.relative_to(ROOT)})")
             for path, texts in shown.items() for text in texts
             if digest(text) not in {*known, *printed, *heads}]
    in_use = {digest(text) for texts in shown.values() for text in texts}
    return found + [("docs/zh/comments.po", f"no script has {text!r} any more")
                    for text in language.table("zh", "comments") if digest(text) not in in_use]


def texts_behind():
    found = []
    for path in TUTORIALS:
        file = f"docs/zh/tutorials/{path.name[:2]}.txt"
        found += texts_of(file, language.texts(path.name[:2], "zh"), of_tutorial(path),
                          "exercise", path.name)
    return found


def texts_of(file, known, wanted, what, where):
    """Yields (file, what it lacks) for a file of whole texts. known: {name: (digest of its English,
    text)}."""
    for name in dict.fromkeys([*wanted, *known]):
        if name not in wanted:
            yield file, f"{name}: no such {what} in {where} any more"
        elif name not in known:
            yield file, f"{name}: no Chinese; it begins `=== {name} of {digest(wanted[name])}`"
        elif known[name][0] != digest(wanted[name]):
            yield file, f"{name}: older than its English in {where}"


def of_the_book():
    """Returns {page: its English}."""
    return {name: book.told(book.page(name)) for _, pages in book.contents() for name, _ in pages}


def book_behind():
    return [*texts_of(BOOK, language.parts_of(ROOT / BOOK), of_the_book(), "page",
                      "minidl/plain")]


def pages_behind():
    found = []
    for page in PAGES:
        source, of = STAMP.match(exercise.read(page)).groups()
        if of != "here" and of != digest(exercise.read(ROOT / source)):
            found.append((page.relative_to(ROOT).as_posix(), f"older than {source}"))
    return found


def stamp(name):
    """Writes the digests of the English into a page or a tutorial's texts. Returns a sentence."""
    path = ROOT / name
    text = exercise.read(path)
    if path.suffix == ".md":
        source = STAMP.match(text)[1]
        of = digest(exercise.read(ROOT / source))
        text = STAMP.sub(f"<!-- {source} of {of} -->", text, count=1)
    else:
        wanted = of_the_book() if name == BOOK else of_tutorial(next(
            t for t in TUTORIALS if t.name[:2] == path.stem))
        text = re.sub(r"^=== (\w+) of [0-9a-f]{12}", lambda part: part[0] if part[1] not in wanted
                      else f"=== {part[1]} of {digest(wanted[part[1]])}", text, flags=re.M)
    path.write_text(text, encoding="utf-8")
    return f"{name}: has the digest of its English now"


def without_what_is_behind(text):
    """Returns a text that was shown in Chinese, in one line, without the messages that are known to
    have no Chinese. Any English in the rest is a mistake."""
    text, known = " ".join(text.split()), language.table("zh")
    for message in (m for messages in messages_shown().values() for m in messages):
        if message not in known:
            for piece in HOLES.split(message):
                words = " ".join(piece.split())
                text = text.replace(words, "|") if len(words) > 3 else text
    return text
