"""What docs/course says of the tutorials is what they are."""

import re

import pytest

from minidl.course import exercise, handout

COURSE = exercise.ROOT / "docs" / "course"
SCRIPTS = {f.name[:2]: f for f in sorted((exercise.ROOT / "tutorials").glob("[0-9][0-9]_*.py"))}
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


def test_every_tutorial_has_two_questions_with_answers():
    text = (exercise.ROOT / handout.PRIVATE / "questions.md").read_text()
    sections = dict(re.findall(r"^## (\d\d)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    assert list(sections) == list(SCRIPTS), (
        "docs/course/questions/questions.md: a section `## NN` for each tutorial, in order: "
        f"{sorted(set(sections) ^ set(SCRIPTS))}")
    for number, section in sections.items():
        kinds = re.findall(r"^\*\*([QA])\.\*\* \S", section, re.M)
        assert kinds == ["Q", "A"] * (len(kinds) // 2) and len(kinds) >= 4, (
            f"docs/course/questions/questions.md, {number}: two questions or more, `**Q.** ...`, "
            "each with its `**A.** ...` behind it")


def test_gradescopes_layout_is_the_one_that_is_made():
    """The trial of kit.md names the folders of run_autograder."""
    text = (COURSE / "kit.md").read_text()
    for name in ("source", "submission", "results"):
        assert f"try/{name}" in text and f"$base/{name}" in handout.AUTOGRADER, (
            f"docs/course/kit.md says try/{name}; AUTOGRADER of minidl/course/handout.py must have "
            f"$base/{name}")
