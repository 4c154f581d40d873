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

# {phrase: what to write}
PHRASES = {
    "in silence": "silently",
    "anew": "again",
    "besides": "also",
    "so many": "the number, N, or how many",
    "of whom": "a second sentence",
    "of which": "a second sentence",
    "is said": "prints, raises",
    "says so": "prints it, raises an error",
    "hears so": "gets this error",
    "whoever": "a rank that, a user who",
    "as far as there are": "if there are any",
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
    whole = path.read_text().lower()
    # Few files contain a phrase anywhere. Only in these files it takes time to look at each line.
    phrases = {phrase: better for phrase, better in PHRASES.items() if phrase in whole}
    if not phrases:
        return []
    return [(line, phrase, better)
            for line, text in texts(path)
            for phrase, better in phrases.items()
            if re.search(rf"\b{phrase}\b", text, re.IGNORECASE)]


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
