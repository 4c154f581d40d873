"""What docs/course says of the tutorials is what they are."""

import ast
import re

import pytest

from minidl.course import exercise, handout
from minidl.course.student import load

COURSE = exercise.ROOT / "docs" / "course"
SCRIPTS = {f.name[:2]: f for f in sorted((exercise.ROOT / "tutorials").glob("[0-9][0-9]_*.py"))}
SHEETS = load(COURSE / "sheets.py").SHEETS
OUTLINES = {f.name[:2]: f for f in sorted((COURSE / "outlines").glob("[0-9][0-9]_*.md"))}
OF_ALL = {"sim", "slides", "device", "alpha", "beta", "deadline", "every-language"}  # tutorial.py
OF_RUN = {"n", "restarts", "net"}  # of `minidl run`, before the script
PLANS = (COURSE / "plans.md").read_text()


def test_the_table_has_the_minutes_and_needs_of_every_script():
    rows = re.findall(r"^\| \[(\d\d)\]\((\S+)\) \| (\d) \| (\d+) \| (.*?) \| (.*?) \| (.*?) \|$",
                      (COURSE / "units.md").read_text(), re.M)
    assert [row[0] for row in rows] == list(SCRIPTS), (
        "docs/course/units.md: the table wants a row for each tutorial, in their order: "
        f"{sorted({row[0] for row in rows} ^ set(SCRIPTS))}")
    for number, link, difficulty, minutes, needs, can, errors in rows:
        script = SCRIPTS[number]
        first = script.read_text().splitlines()[0]
        where = f"docs/course/units.md, the row of {number}:"
        assert first.endswith(f" {minutes} minutes, needs: {needs}"), (
            f"{where} {minutes} minutes, needs {needs}; the script begins with {first!r}")
        assert link == f"../../tutorials/{script.name}", f"{where} link to {script.name}"
        assert 1 <= int(difficulty) <= 5, f"{where} the difficulty is 1 to 5"
        assert can and errors, f"{where} what can one do then, and which errors are common?"


@pytest.mark.parametrize("title, weeks", [("Fourteen weeks", 14), ("Seven weeks", 7)])
def test_a_plan_has_its_weeks_and_every_tutorial_once(title, weeks):
    (plan,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PLANS, re.M | re.S)
    rows = re.findall(r"^\| (\d+) \| .*? \| (.*?) \| (.*?) \|$", plan, re.M)
    assert [int(week) for week, *_ in rows] == list(range(1, weeks + 1)), (
        f"docs/course/plans.md, {title}: a row a week, 1 to {weeks}")
    numbers = [n for _, labs, rest in rows for n in re.findall(r"\b\d\d\b", labs) + (
        re.findall(r"\b\d\d\b", rest) if weeks == 7 else [])]
    assert sorted(numbers) == list(SCRIPTS), (
        f"docs/course/plans.md, {title}: each tutorial once; it has {sorted(numbers)}")


def test_what_a_tutorial_needs_comes_before_it_in_the_long_plan():
    order = re.findall(r"\b\d\d\b", " ".join(re.findall(r"^\| \d+ \| .*? \| (.*?) \|", PLANS.split(
        "## Seven")[0], re.M)))
    for number, script in SCRIPTS.items():
        needs = re.search(r"needs: ([^.;]*)", script.read_text().splitlines()[0])[1]
        for needed in re.findall(r"\b\d\d\b", needs):
            assert order.index(needed) < order.index(number), (
                f"docs/course/plans.md, Fourteen weeks: {number} needs {needed}, which comes later")


def test_every_tutorial_has_ten_questions_with_answers():
    text = (exercise.ROOT / handout.PRIVATE / "questions.md").read_text()
    sections = dict(re.findall(r"^## (\d\d)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    assert list(sections) == list(SCRIPTS), (
        "docs/course/questions/questions.md: a section `## NN` for each tutorial, in order: "
        f"{sorted(set(sections) ^ set(SCRIPTS))}")
    for number, section in sections.items():
        kinds = re.findall(r"^\*\*([QA])\.\*\* \S", section, re.M)
        assert kinds == ["Q", "A"] * (len(kinds) // 2) and len(kinds) >= 20, (
            f"docs/course/questions/questions.md, {number}: ten questions or more, `**Q.** ...`, "
            "each with its `**A.** ...` behind it")


def test_the_mapping_names_tutorials_that_exist_and_the_playbook_leaves_none_out():
    text = (COURSE / "mapping.md").read_text()
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    assert len(sections) == 6
    for title, section in sections.items():
        rows = [line.split("|")[2:4] for line in section.splitlines() if line.startswith("| ")]
        columns = rows[1:] if title != "In short" else [row[:1] for row in rows[1:]]
        named = {n for row in columns for cell in row for n in re.findall(r"\b\d\d\b", cell)}
        assert named and named <= set(SCRIPTS), f"docs/course/mapping.md, {title}: {named}"
        if "Playbook" in title:
            after = section.partition("no sections for the tutorials")[2]
            left_out = re.findall(r"\b\d\d\b", after)
            assert named.isdisjoint(left_out) and named | {*left_out} == set(SCRIPTS), (
                "docs/course/mapping.md: each tutorial is in the playbook's table, or in the list "
                f"below it: {named ^ {*left_out} ^ set(SCRIPTS)}")


def test_gradescopes_layout_is_the_one_that_is_made():
    """The trial of kit.md names the folders of run_autograder."""
    text = (COURSE / "kit.md").read_text()
    for name in ("source", "submission", "results"):
        assert f"try/{name}" in text and f"$base/{name}" in handout.AUTOGRADER, (
            f"docs/course/kit.md says try/{name}; AUTOGRADER of minidl/course/handout.py must have "
            f"$base/{name}")


def options(script):
    """The names of a tutorial's own options: the keys of its OPTIONS, with - for _."""
    for node in ast.parse(script.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "OPTIONS":
            return {key.value.replace("_", "-") for key in node.value.keys}
    return set()


def problem(command):
    """What is wrong with a command of an outline; "" if nothing is."""
    words = command.split()
    if words[0] not in ("minidl", "python", "make"):
        return "it begins with minidl, python or make"
    scripts = [word for word in words if word.startswith(("tutorials/", "kernels/"))]
    missing = [word for word in scripts if not (exercise.ROOT / word).exists()]
    if missing:
        return f"there is no {missing[0]}"
    if words[:2] in (["minidl", "exercise"], ["minidl", "check"]):
        known = {r.id for s in exercise.sources(words[2][:2]) for r in
                 exercise.regions(exercise.read(s))}
        return "" if words[2] in known | {words[2][:2]} else f"there is no exercise {words[2]}"
    if words[:2] == ["python", "-m"]:
        page = exercise.ROOT.joinpath(*words[2].split(".")).with_suffix(".py")
        return "" if page.exists() else f"there is no {page}"
    if scripts and scripts[0].endswith(".py"):
        at = words.index(scripts[0])
        asked = [word.lstrip("-") for word in words[at + 1:] if word.startswith("-")]
        before = [word.lstrip("-") for word in words[:at] if word.startswith("-")]
        wrong = set(asked) - OF_ALL - options(exercise.ROOT / scripts[0]) | set(before) - OF_RUN
        return f"no option {sorted(wrong)}" if wrong else ""
    return ""


def test_every_tutorial_has_an_outline_that_the_index_lists():
    assert {n: f.stem for n, f in OUTLINES.items()} == {n: f.stem for n, f in SCRIPTS.items()}, (
        "docs/course/outlines: a page NN_name.md for each tutorial")
    listed = re.findall(r"^\| \[(\d\d)\]\((\S+)\) \|" + r" (.*?) \|" * 4 + "$",
                        (COURSE / "outlines" / "README.md").read_text(), re.M)
    assert [(n, page) for n, page, *_ in listed] == [(n, f.name) for n, f in OUTLINES.items()], (
        "docs/course/outlines/README.md: a row for each page, in their order")
    for number, _, title, seconds, exercises, sheet in listed:
        head = OUTLINES[number].read_text()
        assert head.startswith(f"# {number}  {title}\n"), f"outlines/README.md, {number}: {title}"
        assert f"\n| {seconds} | " in head and f" | {exercises} | " in head and sheet in head, (
            f"docs/course/outlines/README.md, the row of {number}: give the seconds, exercises and "
            "sheet of the page")


@pytest.mark.parametrize("number", SCRIPTS)
def test_an_outline_fills_its_minutes_and_names_what_exists(number):
    page = OUTLINES[number]
    text = page.read_text()
    (minutes, exercises, sheet), = re.findall(
        r"^\| [\d.]+ \| (\d+) \| (.*?) \| (.*?) \|$", text, re.M)
    rows = [(int(a), int(b)) for a, b in re.findall(r"^\| (\d+) to (\d+) \| ", text, re.M)]
    ends = [0, *(end for _, end in rows)]
    assert [start for start, _ in rows] == ends[:-1] and ends[-1] == int(minutes) == 90, (
        f"{page}: the rows go from 0 to 90 minutes without a gap; got {rows}")
    known = [r.id for s in exercise.sources(number) for r in exercise.regions(
        exercise.read(s))] if number != "00" else []
    assert exercises == (", ".join(sorted(known)) or "none"), f"{page}: exercises"
    sheets = re.findall(r"\[(\w+)\]\(\.\./sheets\.py\)", sheet)
    assert sheet == "nothing" or sheets and set(sheets) <= set(SHEETS), f"{page}: print {sheet}"
    assert bool(sheets) == bool(re.search(r"\| Sheet: ", text)), (
        f"{page}: a row that begins with \"Sheet:\" uses the sheet, if the page has one")
    commands = [c for c in re.findall(r"`([^`]+)`", text) if c.split()[0] in (
        "minidl", "python", "make")]
    script = f"tutorials/{SCRIPTS[number].name}"
    assert any(script in c for c in commands), f"{page}: run the script"
    assert {c: problem(c) for c in commands if problem(c)} == {}, page
    asked = re.findall(r"\| (\d)\. [^|]+ \|$", text, re.M)
    answers = re.findall(r"^(\d)\. \S", text.partition("Answers:")[2], re.M)
    assert asked == answers and len(answers) >= 2, (
        f"{page}: each question of the last column has its answer below")


def test_a_wrong_command_of_an_outline_is_found():
    assert problem("python tutorials/07_ring.py --sim 4 --steps 2") == ""
    assert problem("minidl run -n 4 --restarts 3 tutorials/21_fault_tolerance.py --kill 3") == ""
    assert problem("python tutorials/07_ring.py --stages 4") == "no option ['stages']"
    assert problem("python tutorials/07_rings.py") == "there is no tutorials/07_rings.py"
    assert problem("minidl run --steps 4 tutorials/07_ring.py") == "no option ['steps']"
    assert problem("minidl check 07x") == "there is no exercise 07x"
    assert "there is no" in problem("python -m minidl.plain.rings")


def test_every_sheet_is_used_by_an_outline():
    texts = [f.read_text() for f in OUTLINES.values()]
    used = {name for text in texts for name in re.findall(r"\[(\w+)\]\(\.\./sheets", text)}
    assert used == set(SHEETS)
