"""The exercise machinery, on a small repository of its own.

The real exercises: tests/tutorials/test_exercises.py"""

import re
from pathlib import Path

import pytest

from minidl.course import exercise, grade
from tests.course.planted import mistaken

TUTORIAL = '''"""07  A tutorial."""


def double(x):
    # >>> exercise 07a: twice
    # Return 2 x.
    # Hint: addition.
    y = x + x  # not a hint
    return y
    # <<<


def triple(x):
    # >>> exercise 07b: thrice
    return 3 * x
    # <<<
'''

KERNEL = """// >>> exercise 07c: guard
// Threads beyond n must not write.
if (i < n) y[i] = x[i];
// <<<
"""

GRADER = '''
from minidl.course.grade import Wrong

def doubled(module, x):
    return module.double(x)

def tripled(module, x):
    return module.triple(x)

def grade_07a(student):
    """double doubles."""
    for x in (1, 2, 5):
        got = student.run(doubled, x)
        if got != 2 * x:
            raise Wrong(f"double({x}) should be {2 * x}, got {got}")
        yield f"x = {x}"

def grade_07b(student):
    """triple triples."""
    assert student.run(tripled, 2) == 6
    yield "x = 2"
'''


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A repository with one tutorial, and a current folder for work/."""
    root = tmp_path / "repository"
    (root / "tutorials" / "graders").mkdir(parents=True)
    (root / "tutorials" / "07_numbers.py").write_text(TUTORIAL)
    (root / "tutorials" / "08_nothing_to_do.py").write_text('"""08"""\n')
    (root / "tutorials" / "graders" / "07_numbers.py").write_text(GRADER)
    monkeypatch.setenv("PYTHONPATH", str(exercise.ROOT))
    monkeypatch.chdir(tmp_path)
    return root


def _write(place, text, number="07", **options):
    exercise.write(number, root=place)
    path = place.parent / "work" / "07_numbers.py"
    path.write_text(text)
    return grade.check(number, root=place, **options)


def test_a_region_is_found_with_its_place_and_title():
    first, second = exercise.regions(TUTORIAL)
    assert (first.id, first.title, second.id) == ("07a", "twice", "07b")
    assert TUTORIAL.splitlines()[first.start - 1].strip() == "# >>> exercise 07a: twice"
    assert exercise.body(TUTORIAL, second) == "    return 3 * x\n"


@pytest.mark.parametrize(
    "text, words",
    [
        ("# >>> exercise 07a: x\n", "no '<<<'"),
        ("# <<<\n", "ends an exercise, but none has begun"),
        ("# >>> exercise 07a: x\n# >>> exercise 07b: y\n# <<<\n", "begins inside exercise 07a"),
    ],
)
def test_marks_that_do_not_pair_are_an_error_with_its_line(text, words):
    with pytest.raises(exercise.ExerciseError, match=words) as caught:
        exercise.regions(text, "07_numbers.py")
    assert "07_numbers.py:" in str(caught.value)


def test_the_blank_keeps_the_task_and_drops_the_solution():
    blank = exercise.blank(TUTORIAL)
    assert "    # Return 2 x.\n    # Hint: addition.\n    raise NotImplementedError(" in blank
    assert "x + x" not in blank and "not a hint" not in blank and "3 * x" not in blank
    compile(blank, "blank", "exec")
    assert blank.splitlines()[:4] == TUTORIAL.splitlines()[:4], (
        "outside its regions nothing changes"
    )


def test_the_blank_of_a_kernel_does_not_compile_and_says_why():
    assert exercise.blank(KERNEL) == (
        "// >>> exercise 07c: guard\n// Threads beyond n must not write.\n"
        '#error "exercise 07c (guard) is not written yet"\n// <<<\n'
    )


def test_filling_a_region_with_its_own_body_changes_nothing():
    answers = {
        r.id: exercise.body(TUTORIAL, r).replace("\n    ", "\n")[4:]
        for r in exercise.regions(TUTORIAL)
    }
    assert exercise.fill(TUTORIAL, answers) == TUTORIAL


def test_a_mistake_is_code_or_what_to_replace_in_the_solution():
    whole = mistaken(TUTORIAL, "07a", "return x")
    assert "    # >>> exercise 07a: twice\n    return x\n    # <<<\n" in whole
    edited = mistaken(TUTORIAL, "07a", {"x + x": "x * x"})
    assert edited == TUTORIAL.replace("x + x", "x * x")
    with pytest.raises(ValueError, match="07a: 'x' is 3 times in the solution"):
        mistaken(TUTORIAL, "07a", {"x": "y"})
    assert mistaken(KERNEL, "07a", {"x + x": "x"}) == KERNEL, "not its file"


def test_what_cannot_be_written_is_said_and_leaves_nothing(place):
    (place.parent / "work").write_text("a file where the folder should be")
    with pytest.raises(exercise.ExerciseError, match="cannot write work/07_numbers.py in .*: File"):
        exercise.write("07", root=place)


def test_exercise_writes_the_blank_of_tutorial_and_kernel(place, capsys):
    (place / "kernels").mkdir()
    (place / "kernels" / "copy.cu").write_text(KERNEL)
    assert exercise.write("07", root=place) == 0
    work = place.parent / "work"
    assert (work / "07_numbers.py").read_text() == exercise.blank(TUTORIAL)
    assert (work / "copy.cu").read_text() == exercise.blank(KERNEL)
    assert "exercise 07a, line 5: twice" in capsys.readouterr().out


def test_edited_work_is_overwritten_only_by_force(place):
    exercise.write("07", root=place)
    exercise.write("07", root=place)  # the untouched blank may be written again
    path = place.parent / "work" / "07_numbers.py"
    path.write_text("my work\n")
    with pytest.raises(exercise.ExerciseError, match="--force"):
        exercise.write("07", root=place)
    assert path.read_text() == "my work\n"
    exercise.write("07", force=True, root=place)
    assert path.read_text() == exercise.blank(TUTORIAL)


def test_one_exercise_is_blanked_and_the_others_stay(place, capsys):
    exercise.write("07a", root=place)
    out = capsys.readouterr().out
    assert "exercise 07a, line 5: twice" in out and "07b" not in out and "minidl check 07a" in out
    path = place.parent / "work" / "07_numbers.py"
    path.write_text(TUTORIAL)
    with pytest.raises(exercise.ExerciseError, match="minidl exercise 07a --force"):
        exercise.write("07a", root=place)
    exercise.write("07a", force=True, root=place)
    assert "x + x" not in path.read_text() and "3 * x" in path.read_text()


def test_check_passes_the_solution_and_names_the_file(place, capfd):
    assert _write(place, TUTORIAL) == 0
    out = capfd.readouterr().out
    assert (
        "checking work/07_numbers.py" in out
        and "ok    x = 5" in out
        and "07a passed, 07b passed" in out
    )


def test_check_fails_the_blank_and_gives_its_line(place, capfd):
    assert _write(place, exercise.blank(TUTORIAL)) == 1
    out = capfd.readouterr().out
    assert "07_numbers.py, line 8: exercise 07a (twice) is not written yet" in out
    assert "07a FAILED, 07b FAILED" in out


def test_check_says_what_is_wrong_and_goes_on_to_the_next_exercise(place, capfd):
    assert _write(place, TUTORIAL.replace("x + x", "x * x")) == 1
    out = capfd.readouterr().out
    assert "double(1) should be 2, got 1" in out and "07a FAILED, 07b passed" in out


def test_check_of_one_exercise_ignores_the_others(place):
    text = TUTORIAL.replace("3 * x", "1 / 0")
    assert _write(place, text, "07") == 1
    assert grade.check("07a", root=place) == 0
    assert grade.check("07b", root=place) == 1


def test_an_exception_is_shown_with_the_students_line_alone(place, capfd):
    assert _write(place, TUTORIAL.replace("x + x  # not a hint", "x + nothing")) == 1
    out = capfd.readouterr().out
    assert "07_numbers.py, line 8, in double: y = x + nothing" in out and "NameError" in out
    assert "graders" not in out and "Traceback" not in out


def test_a_file_that_python_cannot_read_fails_with_its_line(place, capfd):
    assert _write(place, TUTORIAL.replace("def double(x):", "def double(x)")) == 1
    out = capfd.readouterr().out
    assert "cannot be imported" in out and "line 4" in out


def test_an_endless_loop_is_stopped_and_its_line_shown(place, capfd):
    text = TUTORIAL.replace("    y = x + x  # not a hint\n", "    while True: x\n")
    assert _write(place, text, deadline=2) == 1
    out, err = capfd.readouterr()
    assert "no answer within 2 s" in out
    assert "07_numbers.py" in err and "line 8 in double" in err
    assert "07a not graded, 07b passed" in out, "the next exercise has a new process"


def test_solution_is_a_diff_from_the_work_to_the_tutorial(place, capsys):
    exercise.write("07", root=place)
    capsys.readouterr()
    exercise.solution("07", root=place)
    out = capsys.readouterr().out
    assert "--- work/07_numbers.py" in out and "+++ tutorials/07_numbers.py" in out
    assert "+    y = x + x  # not a hint" in out and "-    raise NotImplementedError" in out


def test_the_solution_of_one_exercise_shows_no_other(place, capsys):
    exercise.write("07", root=place)
    capsys.readouterr()
    exercise.solution("07b", root=place)
    out = capsys.readouterr().out
    assert "+    return 3 * x" in out and "x + x" not in out


@pytest.mark.parametrize("code, words", [
    ("raise SystemExit", "ended with exit status 0 before it had answered"),
    ("__import__('os')._exit(0)", "ended with exit status 0 before it had answered"),
    ("[__import__('os').write(int(fd), b'true' * 9) for fd in __import__('sys').argv[-2:]]",
     "Bad file descriptor"),
    ("__import__('os').write(int(__import__('sys').argv[-1]), b'true' * 9)", "not an answer"),
    ("__import__('os').kill(0, 15)", "ended by signal 15 before it had answered"),
])
def test_what_is_no_answer_is_not_graded(code, words, place, capfd):
    text = TUTORIAL.replace("y = x + x  # not a hint", code)
    assert _write(place, text) == 1
    assert words in capfd.readouterr().out
    (place.parent / "work" / "07_numbers.py").write_text(code + "\n" + TUTORIAL)
    assert grade.check("07", root=place) == 1, "when the file is loaded"
    out = capfd.readouterr().out
    assert ("not graded" in out or "cannot be imported" in out) and "passed" not in out


@pytest.mark.parametrize(
    "command, words",
    [
        (lambda root: exercise.write("07z", root=root), "tutorial 07 has the exercises 07a,"),
        (lambda root: exercise.solution("07z", root=root), "tutorial 07 has the exercises 07a,"),
        (
            lambda root: exercise.write("08", root=root),
            "tutorial 08 has no exercise; these tutorials have exercises: 07",
        ),
        (lambda root: grade.check("07", root=root), "Make this file first: minidl ex"),
        (lambda root: exercise.solution("07", root=root), "Make this file first: minidl ex"),
        (lambda root: exercise.write("07", root=root / "nowhere"), "need a clone"),
    ],
)
def test_what_cannot_be_done_says_what_to_do(place, command, words):
    with pytest.raises(exercise.ExerciseError, match=words):
        command(place)


def test_two_numbers_that_differ_late_are_shown_with_the_digits_that_differ():
    assert grade.apart(0.25, 0.5) == ("0.25", "0.5")
    assert grade.apart(0.242365314, 0.242365317) == ("0.24236531", "0.24236532")
    right, is_now = grade.apart(1.0, 1.0 + 2**-52)
    assert right != is_now


def test_no_grader_says_that_a_number_should_be_what_it_is():
    """A message "should be 0.2424, is 0.2424" does not help. So graders use `apart`."""
    files = sorted((Path(__file__).parents[2] / "tutorials" / "graders").glob("[0-9]*.py"))
    assert len(files) > 30
    cut_off = re.compile(r"should be \{[^}]*:\.?\d*[gf]\}, (\"\s*f\")?is")
    found = [path.name for path in files if cut_off.search(path.read_text())]
    assert found == ["05_amp.py"], "its numbers are powers of two, which 6 digits show"
