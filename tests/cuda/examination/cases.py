"""The examination of the checker: kernels with a known bug each, and sound ones that look wrong.

    bugs/NAME.cu      one bug, in the lines marked `// BUG` (`# BUG` where the launch is wrong)
    sound/NAME.cu     no bug; the launch compares the result with NumPy's

A file is a case, and says all of itself in its head:

    // What is wrong, or what looks wrong and is right.
    // kind: endless loop                       one of KINDS; `sound` in sound/
    /* launch                                   Python; what it may use is in PRELUDE
    x = ramp(64)
    cu("kernel")((1,), (64,), (x, 64))
    */

They were written before the checker was mended, by someone who had not read it. So what a report
must say is asked in plain words: any of those that KINDS lists for the kind, besides the line.

examine.py runs them.   Test: test_examination.py   Tutorial: tutorials/03_kernel_tour.py
"""

import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent

# What a report must say: a regular expression, matched without regard to case.
RACE = (r"\brac(e|es|ing)\b|unordered|at the same time|in (any|either) order|double write"
        r"|depends on (the|thread) order")
OUTSIDE = (r"out of (bounds|range)|outside|past the|beyond|overr[au]n|behind"
           r"|before the (start|begin|first)|stray|no array|wild"
           r"|not an? (valid )?address|segmentation|only \d+ elements"
           r"|has \d+ elements")
ORDER = RACE + r"|results? differ|differs? (from|with|when|in)"
KINDS = {
    "index in a function object": f"{RACE}|{OUTSIDE}",
    "endless loop": r"endless|infinite|for ?ever|never ends|no end|does not end|watchdog|deadlock"
                    r"|time ?out|time limit|spin|still (running|waiting)|stuck",
    "wild write": OUTSIDE,
    "null pointer": r"\bnull\b|nullptr|address 0\b|0x0\b",
    "division by zero": r"divi(de|des|ded|sion)\b.*\b(zero|0)\b|(%|modulo).*\b0",
    "recursion": r"recursi|stack|calls itself|too deep|endless|infinite|for ?ever|watchdog",
    "big local variable": r"stack|local (memory|array|variable)|too (big|large)|512 KB",
    "assert": r"assert|__trap|\btrap",
    "uninitialised local": r"uninitiali[sz]ed|not (been )?initiali[sz]ed|unwritten|indeterminate"
                           r"|without (a|an initial) value|never (been )?(written|set|assigned)"
                           r"|before it (is|was) set",
    "missing fence": r"fence",
    "race": ORDER,
    "overrun through a pointer": OUTSIDE,
    "stale pointer": OUTSIDE + r"|stale|dangling|earlier launch|last launch|previous launch|ended"
                               r"|no longer|freed|gone|out of scope|lifetime|returned",
    "shift": r"shift",
    "divergent barrier": r"diverg|not all threads|deadlock"
                         r"|barrier.*(return|wait|never)|(wait|stuck).*barrier",
    "missing barrier": RACE + r"|barrier|__syncthreads",
    "race in a warp": RACE + r"|__syncwarp",
    "wrong shuffle": r"shuffle|shfl|lane|mask",
    "too much shared memory": r"shared memory|shared",
    "wrong launch": r"block|grid|threads|launch|dimension|launch_bounds|shared",
    "integer overflow": OUTSIDE + r"|overflow|wraps|negative|too (big|large)|" + RACE,
    "misaligned access": r"align",
}
SOUND = "sound"

PRELUDE = '''\
import numpy as np
from minidl import kernel


def cu(name, **options):
    """The kernel called `name` in this case's file."""
    return kernel({file!r}, name, **options)


def ramp(n, dtype=np.float32):
    return np.arange(1, n + 1).astype(dtype)


def noise(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def same(got, want, rtol=0.0, atol=0.0):
    """The result of a sound kernel: says so and goes on."""
    got = np.asarray(got)
    want = np.broadcast_to(want, got.shape)
    right = np.allclose(got, want, rtol, atol, equal_nan=True)
    print("EXAMINED:", "right" if right else f"wrong: got {{got}}, want {{want}}", flush=True)


'''


@dataclass(frozen=True)
class Case:
    name: str
    kind: str
    path: Path
    about: str          # what is wrong, or what looks wrong
    script: str         # Python that launches it
    lines: frozenset    # of the bug, in the .cu file
    launch_lines: frozenset  # of the bug, in the script, where the launch is wrong

    @property
    def sound(self):
        return self.kind == SOUND

    @property
    def says(self):
        """What a report of this bug must match."""
        return re.compile(KINDS[self.kind], re.IGNORECASE)


def read(path):
    """The case in the file `path`."""
    text = path.read_text()
    head = re.match(r"((?://.*\n)+)/\* launch\n(.*?)\*/\n", text, re.DOTALL)
    if not head:
        raise ValueError(f"{path}: wants // lines, then /* launch ... */, at its top; see cases.py")
    about = re.findall(r"^// ?(.*)$", head[1], re.MULTILINE)
    kinds = [line.removeprefix("kind: ") for line in about if line.startswith("kind: ")]
    if len(kinds) != 1 or kinds[0] not in (*KINDS, SOUND):
        raise ValueError(f"{path}: wants one line `// kind: ...` of {[*KINDS, SOUND]}; got {kinds}")
    script = PRELUDE.format(file=str(path)) + head[2]
    return Case(path.stem, kinds[0], path,
                " ".join(line for line in about if not line.startswith("kind: ")),
                script, _marked(text, "// BUG"), _marked(script, "# BUG"))


def cases():
    """All of them, bugs first."""
    return [read(path) for folder in ("bugs", "sound")
            for path in sorted((HERE / folder).glob("*.cu"))]


def _marked(text, marker):
    return frozenset(n for n, line in enumerate(text.splitlines(), 1) if marker in line)
