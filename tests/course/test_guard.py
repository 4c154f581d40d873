"""Whatever a student's code does, the grader goes on, and none of its processes is left."""

import csv
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from minidl.course import exercise, grade, guard, report, student
from tests.conftest import some
from tests.course.test_exercise import GRADER, TUTORIAL

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prctl, /proc: Linux")
PLAIN = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("guard", {guard.__file__!r})
guard = importlib.util.module_from_spec(spec)
spec.loader.exec_module(guard)
guard._own_namespace = lambda: False
guard.main(*sys.argv[1:])
"""


def without_namespace(*arguments):
    """student.start as on a system that allows no namespace."""
    return subprocess.Popen([sys.executable, "-c", PLAIN, *map(str, arguments)],
                            stdin=subprocess.DEVNULL, pass_fds=arguments[-3:],
                            start_new_session=True)


def has_namespaces():
    pid = os.fork()
    if not pid:
        os._exit(0 if guard._own_namespace() else 1)
    return os.waitpid(pid, 0)[1] == 0


@pytest.fixture
def place(tmp_path, monkeypatch):
    root = tmp_path / "repository"
    (root / "tutorials" / "graders").mkdir(parents=True)
    (root / "tutorials" / "07_numbers.py").write_text(TUTORIAL)
    (root / "tutorials" / "graders" / "07_numbers.py").write_text(GRADER)
    (root / "course.cfg").write_text("[course]\ntutorials = 07\n")
    monkeypatch.setenv("PYTHONPATH", str(exercise.ROOT))
    monkeypatch.chdir(tmp_path)
    return root


def submit(place, name, code=None):
    """A student's folder; the code stands in exercise 07a."""
    text = TUTORIAL if code is None else TUTORIAL.replace("y = x + x  # not a hint", code)
    path = place.parent / "class" / name / "07_numbers.py"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def points(place):
    lines = csv.DictReader((place.parent / "points.csv").read_text().splitlines())
    return {line["student"]: line["total"] for line in lines}


def left(mark):
    """The processes that have this word in their command."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes() and path.parent.name != str(os.getpid()):
                found.append(path.parent.name)
        except OSError:  # it has ended
            pass
    return found


def gone(mark, seconds=10):
    end = time.monotonic() + seconds
    while left(mark) and time.monotonic() < end:
        time.sleep(0.02)
    return not left(mark)


def sleeper(mark):
    """Code that begins a process in a session of its own, whose parent ends."""
    return (f"import os, subprocess, sys; os.fork() or (os.setsid(), os.fork() and os._exit(0), "
            f"os.execl(sys.executable, 'python', '-c', 'import time; time.sleep(600)', "
            f"'{mark}'))\n    import time; time.sleep(0.3); y = 2 * x")


CODES = {
    "exit": "__import__('os')._exit(3)",
    "kills its parent": "import os, time; os.kill(os.getppid(), 9); time.sleep(0.3); y = 2 * x",
    "signal 11": "__import__('ctypes').string_at(0)",
    "interrupts its parent": "import os, time; os.kill(os.getppid(), 2); time.sleep(.3); y = 2 * x",
    "ends its parent": "import os, time; os.kill(os.getppid(), 15); time.sleep(0.3); y = 2 * x",
    "stops its parent": "import os; os.kill(os.getppid(), 19); os._exit(0)",
    "ends its group": "import os; os.killpg(0, 9)",
    "interrupts its group": "import os, time; os.killpg(0, 2); time.sleep(60)",
    "hangs up": "import os, time; os.kill(os.getppid(), 1); time.sleep(0.3); y = 2 * x",
    "says nonsense": "import sys, os; os.write(int(sys.argv[-1]), b'[' * 99999 + b'\\xff' * 9)",
    "says much": "import sys, os; os.write(int(sys.argv[-1]), (1 << 62).to_bytes(8, 'little'))",
    "half of a letter": "raise ValueError('\\ud800' * 99999)",
}


@pytest.mark.parametrize("start", some([student.start, without_namespace]))
def test_an_answer_cannot_end_the_grading_of_a_class(place, monkeypatch, start, capsys):
    monkeypatch.setattr(grade, "Apart", partial(student.Apart, start=start))

    monkeypatch.setattr(student, "LATE_S", 0)
    monkeypatch.setattr(report, "results", partial(report.results, deadline=3))
    submit(place, "a")
    names = {f"{i:02} {name}": code for i, (name, code) in enumerate(some(CODES.items()))}
    for name, code in names.items():
        submit(place, name, code)
    submit(place, "z")
    assert report.grade_class("class", root=place) == 0
    found = points(place)
    assert found["a"] == found["z"] == "20"
    assert found.keys() == {"a", "z", *names}
    for name in names:  # in a namespace some signals reach nobody, and the answer is right
        assert found[name] in ("0", "10", "20"), name
    out = capsys.readouterr().out
    assert "with exit status 3" in out and "by signal 11" in out


@pytest.mark.parametrize("start", some([without_namespace, student.start]))
def test_no_process_of_an_answer_is_left(place, monkeypatch, start):
    monkeypatch.setattr(grade, "Apart", partial(student.Apart, start=start))
    mark = f"sleeper-{os.getpid()}-{start.__name__}"
    submit(place, "a", sleeper(mark))
    begun = []
    close = student.Apart.close
    monkeypatch.setattr(student.Apart, "close", lambda self: (begun.extend(left(mark)),
                                                              close(self)))
    report.grade_class("class", root=place)
    assert points(place) == {"a": "20"}
    assert begun and gone(mark, 1)


@pytest.mark.parametrize("start", some([student.start, without_namespace]))
def test_when_the_grader_is_killed_the_answer_ends(place, start):
    mark = f"endless-{os.getpid()}-{start.__name__}"
    submit(place, "a", sleeper(mark) + "\n    time.sleep(600)")
    code = ("from functools import partial; from minidl.course import grade, report, student\n"
            "from tests.course import test_guard; from pathlib import Path\n"
            f"grade.Apart = partial(student.Apart, start=test_guard.start_of({start.__name__!r}))\n"
            f"report.grade_class('class', root=Path({str(place)!r}))")
    grader = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    end = time.monotonic() + 30
    while not left(mark) and time.monotonic() < end:
        time.sleep(0.02)
    assert left(mark)
    theirs = left(str(place / "tutorials" / "graders" / "07_numbers.py"))
    assert len(theirs) >= 3, "guard, keeper and the student's process"
    os.kill(grader.pid, signal.SIGKILL)
    grader.wait()
    assert gone(mark) and gone(str(place))


def start_of(name):
    return without_namespace if name == "without_namespace" else student.start


@pytest.mark.skipif(not has_namespaces(), reason="no PID namespace is allowed here")
def test_in_a_namespace_a_signal_to_all_processes_reaches_no_other(place):
    """It is sent only where the namespace is there: else it would end whoever runs this test."""
    inside = "import os, time; inside = os.getppid() == 1 and os.getpid() < 9\n    inside and "
    submit(place, "a", inside + "os.kill(-1, 9)\n    y = 2 * x")
    submit(place, "b", inside + "[os.kill(pid, 0) for pid in range(9, 1 << 22)]\n    y = 2 * x")
    submit(place, "c")
    assert report.grade_class("class", root=place) == 0
    # 07a: there is no such process, which is an error; 07b: graded after it
    assert points(place) == {"a": "10", "b": "10", "c": "20"}
