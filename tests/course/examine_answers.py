"""Every answer in tests/course/answers/ beside every grader: refused, or accepted, and with words.

    python tests/course/examine_answers.py              all of them (make answers): three minutes
    python tests/course/examine_answers.py --short      of each exercise in Python a wrong one, a
                                                        right one; each tampering once: for
                                                        test_answers.py
    python tests/course/examine_answers.py 07a 08       some
    python tests/course/examine_answers.py --say        with what the student reads

Everything but the answer is blank: the tutorials, the kernels, and the other exercises of the
student's file. As in `minidl check` the answer runs in a process of its own, which is forked here
where a student's is started anew: a second less each. `hints.txt` has, for each wrong answer, words
of the message that names its cause. Exit status 1 if an answer is judged wrongly.
"""

import atexit
import contextlib
import io
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from minidl.course import exercise, grade, student

ANSWERS = Path(__file__).with_name("answers")
KINDS = "wrong", "right", "solution", "tampering"
DEADLINE = 60


class Fork:
    """`student.start` by a fork of this process, which has everything imported."""

    def __init__(self, *arguments):
        self.returncode, self.pid = None, os.fork()
        if self.pid:
            return
        status = 1
        try:
            os.setsid()
            atexit._clear()  # what this process must do at its end is not the fork's work
            quiet = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(quiet, fd)
            kept = 2  # nothing of the examination is open in the student's process
            for fd in sorted(arguments[-2:]):
                os.closerange(kept + 1, fd)
                kept = fd
            os.closerange(kept + 1, 1024)
            sys.stdout, sys.stderr, sys.argv = open(1, "w"), open(2, "w"), ["student"]
            student.serve(*arguments[:4], *arguments[-2:])  # without the watchdog's pipe
            status = 0
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            atexit._run_exitfuncs()
            os._exit(status)

    def poll(self, how=os.WNOHANG):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, how)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, seconds=None):
        """There is no guard that would end it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        return self.poll(0)


def blank_course(folder):
    """A repository in which every tutorial and kernel is blank, with the graders."""
    for name in ("tutorials", "kernels"):
        (folder / name).mkdir()
        for file in (exercise.ROOT / name).iterdir():
            if file.suffix in (".py", ".cu"):
                (folder / name / file.name).write_text(exercise.blank(exercise.read(file)))
    shutil.copytree(exercise.ROOT / "tutorials" / "graders", folder / "tutorials" / "graders")
    return folder


def judged(root, name, code):
    """(exit status, what the student reads) of an answer to exercise `name`."""
    number = name[:2]
    with tempfile.TemporaryDirectory() as work:
        for source in exercise.sources(number, root):
            text = exercise.fill(exercise.read(source), {name: code})
            Path(work, source.name).write_text(text)
        file = grade.grader_file(number, root)
        path = Path(work, file.name)
        theirs = student.Apart(file, path, DEADLINE, Fork)
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                (result,) = grade.grade(grade.grader(number, root), [name], theirs, path)
        finally:
            theirs.close()
    return int(result.verdict != "passed"), said.getvalue()


def cases(short=False, only=()):
    """(exercise, kind, name of the answer, its code)."""
    tamperings = sorted((ANSWERS / "tampering").iterdir())
    taken = 0
    for folder in sorted(p for p in ANSWERS.iterdir() if p.is_dir() and p.name[0].isdigit()):
        name = folder.name
        if only and not any(name.startswith(word) for word in only):
            continue
        found = sorted(folder.iterdir())
        python = found[0].suffix == ".py"
        if short and not python:
            continue  # a second for each compilation; tests/tutorials/ has wrong kernels
        for kind in ("wrong", "right"):
            files = [f for f in found if f.name.startswith(kind)]
            for file in files[:1] if short else files:
                yield name, kind, f"{name}/{file.stem}", file.read_text()
        if not short:
            yield name, "solution", f"{name}/solution", _solution(name)
        mine = tamperings if python else []
        if short:
            mine, taken = tamperings[taken : taken + 1], taken + 1
        for file in mine:
            yield name, "tampering", f"{name}/{file.stem}", file.read_text()


def _solution(name):
    for source in exercise.sources(name[:2]):
        text = exercise.read(source)
        for region in exercise.regions(text):
            if region.id == name:
                lines = exercise.body(text, region).splitlines(keepends=True)
                indent = min(len(li) - len(li.lstrip()) for li in lines if li.strip())
                return "".join(li[indent:] if li.strip() else li for li in lines)
    raise ValueError(f"no tutorial has exercise {name}")


def hints():
    """{answer: words of its message}."""
    lines = (ANSWERS / "hints.txt").read_text().splitlines()
    return dict(line.split(" | ", 1) for line in lines if " | " in line)


def main(arguments):
    short, say = ("--short" in arguments), ("--say" in arguments)
    only = [word for word in arguments if not word.startswith("--")]
    counts, faults, wanted = {}, [], hints()
    with tempfile.TemporaryDirectory() as folder:
        root = blank_course(Path(folder))
        os.environ["MINIDL_CACHE"] = str(Path(folder, "cache"))  # paths that never come again
        for name, kind, answer, code in cases(short, only):
            status, said = judged(root, name, code)
            fine = (status == 0) == (kind in ("right", "solution"))
            if kind == "wrong" and fine:
                fine = "not graded" not in said and wanted.get(answer, "???") in said
            row = counts.setdefault(name, {k: [0, 0] for k in KINDS})
            row[kind][0] += fine
            row[kind][1] += 1
            if not fine:
                faults.append(f"{answer}: status {status}, wanted the words "
                              f"{wanted.get(answer)!r}\n{said}")
            if say:
                print(f"=== {answer}: status {status}\n{said}", flush=True)
    print(f"{'exercise':10}{'wrong refused':>16}{'right accepted':>16}{'solution':>10}"
          f"{'tampering refused':>19}")
    total = {k: [sum(row[k][i] for row in counts.values()) for i in (0, 1)] for k in KINDS}
    for name, row in (*counts.items(), ("all", total)):
        print(f"{name:10}" + "".join(
            f"{f'{row[k][0]} of {row[k][1]}' if row[k][1] else '-':>{width}}"
            for k, width in zip(KINDS, (16, 16, 10, 19), strict=True)))
    print("", *faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
