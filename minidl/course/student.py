'''Runs the student's code in a separate process. That process computes, and the grader judges.

    student = Apart(grader's file, student's file)       starts the student's process
    student.run(sums, 4, 1000)      the student's process calls sums(module, 4, 1000), where module
                                    is the student's file; the result is returned in this process

`sums` is a function of the grader's file. It calls the student's functions, and returns their
results and the counters. A returned value is a number, a text, an array, or a list, tuple or dict
of such values. The grader reads nothing else from the student's process: no pickle, no verdict, no
exit status. Arguments must be short. Long inputs are made in both processes from the same seed.

So the student's code can do no more harm than to return wrong numbers, or no numbers. It cannot
replace a function that compares results, because that function runs in the grader's process. Three
risks remain. First, the counters are in the student's process, for example the counts of bytes sent
and of memory held. So the student's code could change them. Second, a shortcut passes if the
counters do not notice it, such as the library's own function under another name. Third, the process
runs under the same user, who may change any file of the course. So a teacher should also read the
answers.

Test: tests/course/test_student.py, tests/course/test_answers.py
'''

import base64
import contextlib
import faulthandler
import importlib.util
import json
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
import traceback
import zlib
from pathlib import Path

import numpy as np

REQUEST_BYTES = 16384  # every pipe takes this many bytes at once, so a request never has to wait
REPLY_BYTES = 1 << 26  # a longer message is an error
MESSAGE = 10_000  # the largest number of characters that are shown of a message
HEAD = 8  # the bytes before each message, which hold the message's length
LATE_S = 10  # seconds for a late process to print its stack
GUARD = Path(__file__).with_name("guard.py")
GUARD_S = 5  # seconds for a guard to end the processes of the student's code


class Wrong(AssertionError):
    """Raised if the student's answer is wrong. The message says what is wrong."""


class Failed(Exception):
    """Raised if the student's code raised an error. The message comes from `explain`."""


class Hidden(Exception):
    """Raised if the next check needs the course's reference answers, which are missing."""


class NotGraded(Exception):
    """Raised if the student's process gave no answer. The message says what happened to the
    process."""


def load(path):
    """Runs a Python file as a module. Returns the module. The file's name may start with a digit.

    The text is always read, never a .pyc file. Two edits in the same second may leave the
    size of the file unchanged. Then an import uses the old .pyc file."""
    name = "exercise_" + re.sub(r"\W", "_", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, path))
    sys.modules[name] = module  # as `import` does: the file's functions look their module up here
    exec(compile(Path(path).read_bytes(), str(path), "exec"), vars(module))
    return module


def load_grader(path, seed=0):
    """Returns a grader, as a module. Its variable SEED, from which inputs are drawn, is set to
    `seed`.

    If `seed` is not 0, and the grader has a function `personal(draw)`, this function is called. It
    returns {name of a variable: its new value}, for example a new size. These variables of the
    grader then get the new values. draw: NumPy's random generator, which begins with this seed. The
    grader's process and the student's process both load the grader in this way, so both have the
    same inputs."""
    graders = load(path)
    if seed:
        graders.SEED = seed
        personal = getattr(graders, "personal", lambda draw: {})
        vars(graders).update(personal(np.random.default_rng(seed)))
    return graders


def seed_of(name):
    """Returns the seed of a student, from 1 to 65,521, or 0 if there is no name. Upper and lower
    case, and spaces in the name, make no difference."""
    return zlib.crc32("".join(name.lower().split()).encode()) % 65521 + 1 if name else 0


# {words in an error of Python or NumPy: what the student has probably done}
HINTS = {
    "NoneType": "Something is None: does your function end with `return` and its result?",
    "array is 0-dimensional": "An array of shape () has no a[i] and no a[:]. Write a[...], which "
                              "stands for all elements of an array of any shape.",
    "zero-dimensional arrays cannot be concatenated": "An array of shape () is a single number. "
                                                      "a.reshape(-1) has the shape (1,).",
    "only 0-dimensional arrays can be converted": "This array has more than one element, but a "
                                                  "single number is wanted here.",
}


def explain(error, path):
    """Returns the message of an error for a student. The traceback shows only lines of the
    student's file, `path`, and no lines of the grader or of the framework."""
    seen = []  # ends the loop if an error is its own cause, after `raise error from error`
    while error.__cause__ not in (None, *seen) and not isinstance(error, Wrong):
        seen.append(error)
        error = error.__cause__  # the cause of RankFailed is the rank's own exception
    if isinstance(error, Failed):
        return str(error)
    if isinstance(error, NotImplementedError):  # raised by a blank exercise: the text is enough
        line = traceback.extract_tb(error.__traceback__)[-1].lineno
        return f"    {Path(path).name}, line {line}: {error}"
    lines = [str(error)]
    if not isinstance(error, Wrong):
        said = traceback.TracebackException.from_exception(error)  # with all lines of the message
        lines = [f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}: {frame.line}"
                 for frame in said.stack
                 if frame.filename in (os.path.abspath(path), str(path))]
        if isinstance(error, SyntaxError):
            lines.append(f"{Path(path).name}, line {error.lineno}: {(error.text or '').strip()}")
        lines.append(f"{type(error).__name__}: {said}")
    lines += [hint for words, hint in HINTS.items() if words in lines[-1]]
    return textwrap.indent("\n".join(lines), "    ")


def printable(text):
    """Returns the text in a form that every terminal and file can show. Cuts the text after MESSAGE
    characters."""
    text = text if len(text) <= MESSAGE else f"{text[:MESSAGE]} ..."
    return text.encode("utf-8", "replace").decode()


# -- messages between the two processes: JSON, with arrays as their bytes


def pack(value):
    return json.dumps(_plain(value)).encode()


def _plain(value):
    if value is None or isinstance(value, (bool, str)):
        return value
    if hasattr(value, "requires_grad"):  # a Tensor
        value = value.array
    if isinstance(value, (np.generic, np.ndarray)):  # before `float`: np.float64 is a float, too
        array = np.asarray(value)
        if array.dtype.kind in "biufc":
            text = base64.b64encode(array.tobytes()).decode()
            kind = "number" if isinstance(value, np.generic) else "array"
            return {kind: [array.dtype.str, array.shape, text]}
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, tuple):
        return {"tuple": [_plain(v) for v in value]}
    if isinstance(value, dict):
        return {"dict": [[_plain(k), _plain(v)] for k, v in value.items()]}
    raise Wrong("wanted results that are numbers or arrays of numbers; got "
                f"{type(value).__name__}: {value!r:.60}")


def unpack(message):
    return _value(json.loads(message))


def _value(plain):
    if isinstance(plain, list):
        return [_value(v) for v in plain]
    if not isinstance(plain, dict):
        return plain
    ((kind, inside),) = plain.items()
    if kind == "tuple":
        return tuple(_value(v) for v in inside)
    if kind == "dict":
        return {_value(k): _value(v) for k, v in inside}
    dtype, shape, text = inside
    if np.dtype(dtype).kind not in "biufc":
        raise ValueError(f"an array has the dtype {dtype}; wanted a dtype of numbers")
    array = np.frombuffer(base64.b64decode(text), dtype).reshape(shape).copy()
    return {"array": array, "number": array[()]}[kind]


# -- the student's side


def answer(graders, module, path, name, args):
    """Returns the reply to `run`: {"value": the result of the grader's function `name`}. If the
    student's code raised an error, returns {"failed": the message of `explain`}.

    SystemExit is not caught. It ends the student's process, as in any program."""
    try:
        return {"value": _plain(getattr(graders, name)(module, *args))}
    except Exception as error:
        return {"failed": explain(error, path)}


def serve(grader, path, deadline, seed, requests, replies):
    """Runs the student's process: loads the grader's file and the student's file, and answers
    requests.

    deadline: the seconds after which the process ends.
    requests: the file descriptor of the pipe from the grader.
    replies: the file descriptor of the pipe to the grader."""
    faulthandler.dump_traceback_later(deadline, exit=True)  # prints the stack, then exits
    requests, replies = os.fdopen(requests, "rb"), os.fdopen(replies, "wb")
    graders = load_grader(Path(grader), seed)
    try:
        module, first = load(Path(path)), {"value": None}
    except Exception as error:
        first = {"failed": explain(error, path)}
    _send(replies, json.dumps(first).encode())
    while size := requests.read(HEAD):
        name, args = unpack(requests.read(int.from_bytes(size, "little")))
        _send(replies, json.dumps(answer(graders, module, path, name, args)).encode())


def _send(file, message):
    file.write(len(message).to_bytes(HEAD, "little") + message)
    file.flush()


# -- the grader's side


def start(*arguments):
    """Starts a new Python process, a guard (guard.py), which starts `serve` with these arguments.
    Returns the guard's process. The last three arguments are the file descriptors of three pipes:
    the watchdog's pipe, the pipe of requests, and the pipe of replies."""
    command = [sys.executable, GUARD, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=arguments[-3:],
                            start_new_session=True)


class Apart:
    """The student's process, as the grader sees it.

    grader:   the path of the grader's file.
    path:     the path of the student's file.
    deadline: after this many seconds the process shows its stack and ends.
    start:    the function that starts the process; a test passes another function.
    seed:     the seed for load_grader."""

    def __init__(self, grader, path, deadline, start=start, seed=0):
        self.files = grader, path
        self.deadline = deadline
        self.start_process = start
        self.seed = seed
        self._begin()

    def _begin(self):
        self.is_loaded = False
        self.start = time.monotonic()
        (theirs, self.requests), (self.replies, other) = os.pipe(), os.pipe()
        watchdog, self.life = os.pipe()
        self.child = self.start_process(*self.files, self.deadline, self.seed, watchdog, theirs,
                                        other)
        for file in theirs, other, watchdog:
            os.close(file)

    def restart(self):
        """Starts a new process, which has `deadline` seconds again. The old process has ended, or
        gave no answer. The next `run` loads the student's file."""
        self.close()
        self._begin()

    def loaded(self):
        """Waits until the student's file is loaded. Raises Failed if it cannot be loaded."""
        self._receive()
        self.is_loaded = True

    def run(self, work, *args):
        """Calls work(module, *args) in the student's process. Returns its result. Raises Failed if
        the student's code raised an error, and NotGraded if the process gave no answer."""
        if not self.is_loaded:
            self.loaded()
        message = pack([work.__name__, args])
        if len(message) > REQUEST_BYTES - HEAD:
            raise ValueError(f"{work.__name__}: wanted at most {REQUEST_BYTES - HEAD:,} bytes of "
                             f"arguments; got {len(message):,}. Make long inputs in both "
                             "processes, from the same seed")
        with contextlib.suppress(BrokenPipeError):  # the process has ended: _receive reports how
            os.write(self.requests, len(message).to_bytes(HEAD, "little") + message)
        return self._receive()

    def _receive(self):
        size = int.from_bytes(self._read(HEAD), "little")
        message = self._read(size) if size <= REPLY_BYTES else b""
        try:
            return _result(json.loads(message))
        except Failed:
            raise
        except Exception:  # wrong bytes must not end the grader
            raise NotGraded("the process of your code sent bytes that are not an answer: it wrote "
                            "into a file that it had not opened") from None

    def _read(self, size):
        parts = []
        while size:
            # poll() comes before the read: if the process has ended, all its bytes are in the pipe
            ended = self.child.poll() is not None
            if select.select([self.replies], [], [], 0 if ended else 0.05)[0]:
                parts.append(os.read(self.replies, min(size, 1 << 20)))
                size -= len(parts[-1])
                if parts[-1]:
                    continue
            late = time.monotonic() - self.start > self.deadline
            if late and (ended or time.monotonic() - self.start > 2 * self.deadline + LATE_S):
                raise NotGraded(f"no answer within {self.deadline} s. The stack above shows where "
                                "your code was. Is there an endless loop?")
            if ended:
                raise NotGraded(f"the process of your code ended {_how(self.child.returncode)} "
                                "before it had answered. Does your code call exit()?")
        return b"".join(parts)

    def close(self):
        """Ends all processes of the student's code."""
        os.close(self.life)  # then the guard ends the other processes and itself
        try:
            self.child.wait(GUARD_S)
        except subprocess.TimeoutExpired:  # the guard was stopped by a signal
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
        os.close(self.requests)
        os.close(self.replies)


def _how(status):
    return f"by signal {-status}" if status < 0 else f"with exit status {status}"


def _result(reply):
    if "failed" in reply:
        raise Failed(printable(str(reply["failed"])))
    return _value(reply["value"])
