"""Tests docs/together.md: each pair is in its lists once, and its test or its sentence exists.
`make register` writes the table above the lists."""

import ast
import functools
import itertools
import re
from collections import Counter
from pathlib import Path

from tests.parallel import pairs as small
from tests.register import WORDS, pairs, rows_after

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "together.md").read_text()
# {technique: a pattern that the code of a test, or of what the test calls, has if it uses the
# technique}
IN_CODE = {
    "DP": "DataParallel|dp=", "Z12": "Zero1|Zero2|zero=[12]", "Z3": "Zero3|zero=3",
    "Off": "Offload", "Rec": "recompute", "O1": "autocast|O1", "O2": "O2|O3|halves|float16|master",
    "Acc": r"no_sync|accumulat|backward\(.*\n *backward\(", "SBN": "SyncBatchNorm",
    "Cmp": "Compressed", "Loc": "LocalSGD", "DiL": "DiLoCo", "TP": "tp=|parallelize",
    "SP": "sequence|seq", "PP": "Pipeline|pp=", "CP": "context_parallel|cp=",
    "EP": "expert_parallel", "PS": "Server|tables", "Rst": "elastic|planted",
    "Heal": "[Bb]udd|heal", "Snap": "snapshot", "Prof": "profile", "Gr": "graphed|launches",
}
# {name in tests/parallel/pairs.py: short name on the page}
SHORT = {"data parallelism": "DP", "ZeRO 1": "Z12", "ZeRO 2": "Z12", "ZeRO 3": "Z3",
         "compression": "Cmp", "SyncBatchNorm": "SBN", "experts": "EP", "local SGD": "Loc",
         "DiLoCo": "DiL", "tensor": "TP", "sequence": "SP", "pipeline": "PP", "context": "CP",
         "parameter server": "PS"}


def rows(heading):
    return rows_after(PAGE, heading)


def named():
    """Returns the short names of the techniques, in the order of the page."""
    return [short for short, _ in rows("# Which technique goes with which")[2:]]


@functools.cache
def definitions(file):
    """Returns {name: (file, syntax tree)} for a name that the file defines. For an imported name
    the value is (another file of tests, the name in this file). If the file itself is imported,
    this name is None."""
    found = {}
    for node in ast.parse((ROOT / file).read_text()).body:
        names = {}
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names = {node.name: (file, node)}
        elif isinstance(node, ast.Assign):
            names = dict.fromkeys((n.id for target in node.targets for n in ast.walk(target)
                                   if isinstance(n, ast.Name)), (file, node))
        elif isinstance(node, ast.ImportFrom) and node.module.startswith("tests"):
            of = node.module.replace(".", "/")
            whole = not (ROOT / f"{of}.py").exists()  # the import takes a whole file
            names = {a.asname or a.name: (f"{of}/{a.name}.py" if whole else f"{of}.py",
                                          None if whole else a.name) for a in node.names}
        found |= names
    return found


def code_of(file, name):
    """Returns the code of a test and of everything in tests/ that the test uses. Leaves out
    comments, docstrings and the names of functions."""
    todo, seen, text = [(file, name)], set(), []
    while todo:
        file, name = place = todo.pop()
        if place in seen or name not in definitions(file):
            continue
        seen.add(place)
        where, node = definitions(file)[name]
        if not isinstance(node, ast.AST):
            todo.append((where, node))
            continue
        parts = [node]
        if not isinstance(node, ast.Assign):
            above = node.bases if isinstance(node, ast.ClassDef) else [node.args]
            parts = [*node.decorator_list, *above,
                     *node.body[ast.get_docstring(node) is not None:]]
        text += map(ast.unparse, parts)
        for n in (n for part in parts for n in ast.walk(part)):
            if isinstance(n, (ast.Name, ast.arg)):
                todo.append((file, n.id if isinstance(n, ast.Name) else n.arg))
            elif isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name):  # as runs.body
                todo.append((definitions(file).get(n.value.id, (file,))[0], n.attr))
    return "\n".join(text)


def strings(file, function=None):
    """Returns the strings in a Python file, or only in one function of the file. For an f-string,
    returns the parts outside the braces."""
    tree = ast.parse((ROOT / file).read_text())
    if function is not None:
        tree = next(node for node in ast.walk(tree)
                    if isinstance(node, ast.FunctionDef) and node.name == function)
    return [node.value for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def test_each_pair_is_once_in_the_lists():
    listed = Counter(pair for heading in WORDS for row in rows(heading)[2:]
                     for pair in pairs(row[0]))
    more = [sorted(pair) for pair, n in listed.items() if n > 1]
    assert not more, f"docs/together.md, the lists below the table: more than once: {more}"
    wanted = {frozenset(pair) for pair in itertools.combinations(named(), 2)}
    assert listed.keys() == wanted, (
        "docs/together.md, the lists below the table: say yes, no or - to "
        f"{[sorted(pair) for pair in wanted - listed.keys()]}; no techniques: "
        f"{[sorted(pair) for pair in listed.keys() - wanted]}")


def test_each_yes_names_a_test_that_there_is():
    found = rows("## Each yes, and the test that holds it")[2:]
    for _, held_by in found:
        file, name = re.fullmatch(r"\[\w+\]\(\.\./(tests/.+\.py)\) `(\w+)`", held_by).groups()
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.M), (
            f"docs/together.md names {name}, which {file} does not have: write its new name")
    assert len(found) > 50


def test_each_yes_has_its_techniques_in_the_code_of_its_test():
    """Notices if a test no longer uses one of its techniques. Cannot check what the test
    compares."""
    assert IN_CODE.keys() == set(named()), (
        "IN_CODE of tests/test_together.py: what does the code of a test have in it, if "
        f"{IN_CODE.keys() ^ set(named())} are at work there?")
    for of, held_by in rows("## Each yes, and the test that holds it")[2:]:
        code = code_of(*re.fullmatch(r"\[\w+\]\(\.\./(.+)\) `(\w+)`", held_by).groups())
        gone = {short for pair in pairs(of) for short in pair
                if not re.search(IN_CODE[short], code)}
        assert not gone, (f"docs/together.md: {of!r} is held by {held_by}, in whose code there is "
                          f"nothing of {gone}: name a test of this pair")


def test_the_ways_that_are_gone_through_are_those_of_the_page():
    (of,) = (of for of, held_by in rows("## Each yes, and the test that holds it")[2:]
             if "`test_with_recompute_or_a_profile_the_bits_are_the_same`" in held_by)
    beside = {short for pair in pairs(of) for short in pair if "Prof" in pair} - {"Prof"}
    ways = {SHORT[way] for way in small.ALL}
    assert beside == ways, ("docs/together.md, the row of this test: with a profile it goes "
                            f"through {sorted(ways)}, the page has {sorted(beside)}")


def test_each_no_is_a_sentence_of_the_source_and_of_a_test():
    found = rows("## Each no, and what the error says")[2:]
    for _, sentence, source, seen_by in found:
        sentence, source = sentence.strip('"'), re.search(r"\]\(\.\./(.+)\)", source)[1]
        file, name = re.fullmatch(r"\[\w+\]\(\.\./(tests/.+\.py)\) `(\w+)`", seen_by).groups()
        for texts in (strings(source), strings(file, name)):
            assert any(sentence in text for text in texts), (
                f"docs/together.md: {sentence!r} is not in {source}, or not in {name} of {file}: "
                "write what the error says now")
    assert len(found) > 5
