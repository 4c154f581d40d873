"""Finds phrases that a student reads twice: python -m tests.plain_words

Looks at docstrings, comments and texts of Python files, and at pages. It prints the file, the line,
and what to write instead. The exit status is 1 if it finds a phrase. CONTRIBUTING.md shows the
style by pairs.
Test: tests/test_plain_words.py"""

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# {phrase, a regular expression: what to write}
PHRASES = {
    r"in silence": "silently",
    r"\banew\b": "again",
    r"\bbesides\b": "also",
    r"\bso many\b": "the number, N, or how many",
    r"\bof whom\b": "a second sentence",
    r"\bof which\b": "a second sentence",
    r"\bis said\b": "prints, raises",
    r"\bsays so\b": "prints it, raises an error",
    r"\bhears so\b": "gets this error",
    r"\bwhoever\b": "a rank that, a user who",
    r"\bas far as there are\b": "if there are any",
}

# Folders and files that are searched.
READ = (
    "minidl", "kernels", "benchmarks", "tutorials", "docs", "README.md", "SECURITY.md", "Makefile",
    "setup.cfg", "pyproject.toml", ".ci/run", ":(glob)tests/*.md", "tests/strict_cupy",
    # These are generated, or in another language. Results keep the names under which they were
    # measured.
    ":!docs/zh", ":!docs/planted_bugs.md", ":!docs/figures.md", ":!benchmarks/results",
)


def texts(path):
    """Yields (line number, text) of what a person reads in a file."""
    text = path.read_text()
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            yield from enumerate(token.string.splitlines(), token.start[0])


def found(path):
    """Returns [(line number, phrase that was found, what to write)]."""
    return [(line, match[0], better)
            for line, text in texts(path)
            for phrase, better in PHRASES.items()
            for match in [re.search(phrase, text, re.IGNORECASE)] if match]


def files():
    """Returns the tracked files under READ."""
    listed = subprocess.run(["git", "ls-files", "--", *READ], cwd=ROOT, text=True,
                            capture_output=True, check=True).stdout
    kinds = (".py", ".md", ".cu", ".cuh", ".h", ".cpp", ".cfg", ".toml", "Makefile", "run")
    return [ROOT / name for name in listed.splitlines() if name.endswith(kinds)] if READ else []


def main():
    status = 0
    for path in files():
        for line, phrase, better in found(path):
            print(f"{path.relative_to(ROOT)}:{line}: {phrase!r}; write: {better}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
