"""docs/together.md is true: each pair is once in its lists, its test or sentence is there."""

import ast
import itertools
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "together.md").read_text()
WORDS = {"## Each yes, and the test that holds it": "yes",
         "## Each no, and what the error says": "no", "## What there is not": "-"}


def rows(heading):
    """The cells of each row of the first table after a heading, without its two first lines."""
    lines = itertools.dropwhile(lambda line: not line.startswith("|"),
                                PAGE.split(f"{heading}\n", 1)[1].splitlines())
    table = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def named():
    """The techniques, in their order."""
    return [short for short, _ in rows("# Which technique goes with which")[2:]]


def pairs(text):
    """The pairs that a cell such as `DP x TP, SP; Rec x PP` is about."""
    for product in text.split("; "):
        for pair in itertools.product(*(side.split(", ") for side in product.split(" x "))):
            yield frozenset(pair)


def strings(file, function=None):
    """The texts in a file of Python, of one of its functions if it is given; of an f-string the
    parts between the braces."""
    tree = ast.parse((ROOT / file).read_text())
    if function is not None:
        tree = next(node for node in ast.walk(tree)
                    if isinstance(node, ast.FunctionDef) and node.name == function)
    return [node.value for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def test_of_each_pair_the_table_says_what_the_lists_say():
    techniques, (columns, _, *table) = named(), rows("## The table")
    assert columns[1:] == techniques[:-1] and [row[0] for row in table] == techniques[1:]
    said = {frozenset((row[0], column)): word for i, row in enumerate(table)
            for column, word in zip(columns[1:i + 2], row[1:], strict=False)}
    assert all(not any(row[i + 2:]) for i, row in enumerate(table)), "each pair once"
    assert len(said) == len(techniques) * (len(techniques) - 1) // 2
    listed = [(pair, word) for heading, word in WORDS.items() for row in rows(heading)[2:]
              for pair in pairs(row[0])]
    assert [pair for pair, n in Counter(pair for pair, _ in listed).items() if n > 1] == []
    assert dict(listed) == {pair: word for pair, word in said.items() if word != "?"}
    assert set(said.values()) <= {*WORDS.values(), "?"}


def test_each_yes_names_a_test_that_there_is():
    found = rows("## Each yes, and the test that holds it")[2:]
    for _, held_by in found:
        file, name = re.fullmatch(r"\[\w+\]\(\.\./(tests/.+\.py)\) `(\w+)`", held_by).groups()
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.M), held_by
    assert len(found) > 50


def test_each_no_is_a_sentence_of_the_source_and_of_a_test():
    found = rows("## Each no, and what the error says")[2:]
    for _, sentence, source, seen_by in found:
        sentence, source = sentence.strip('"'), re.search(r"\]\(\.\./(.+)\)", source)[1]
        file, name = re.fullmatch(r"\[\w+\]\(\.\./(tests/.+\.py)\) `(\w+)`", seen_by).groups()
        for texts in (strings(source), strings(file, name)):
            assert any(sentence in text for text in texts), (sentence, source, name)
    assert len(found) > 5
