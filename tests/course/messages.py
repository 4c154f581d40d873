"""Which messages the sources show: string constants and f-strings, found in the syntax tree.

An f-string becomes its template, `rank {0} of {1}`; a sum of strings, one message. What is no
message (code, patterns, names of options) is in NOT_SHOWN.     Used by: test_language.py
"""

import ast
import re

SHOWN = {"say", "row", "modelled", "progress", "set_title", "suptitle", "tr"}  # their first string
LABELS = {"title", "xlabel", "ylabel", "label"}  # these keywords' strings
TWO_WORDS = re.compile(r"[A-Za-z]{2}.* .*[A-Za-z]|[A-Za-z] .*[A-Za-z]{2}", re.S)
NOT_SHOWN = re.compile(
    r"upper (left|right)|lower (left|right)|center (left|right)|offset points"
    r"|Build Dependencies|I am 0 of|I am 1 of|from minidl import|^import |#include|extern \"C\""
    r"|\(\?|\\w|\\d|\\s|nonlocal best"
    r"|^[a-z]+\.[\w.]+ [a-z_ ]+$|id title start|mark name text|raise NotImplementedError"
    r"|root.*allow"
    r"|^out a b c|not enough slots$|^Intel MPI$|^Open MPI$|/\* left out|\{python\}"
    r"|is \{2\} times in"
    r"|rule must be|wanted a dtype of numbers|bytes of arguments; got|^the file$|isend irecv|\{\}"
    r"|^I am$| CJK |^Source Han|^WenQuanYi|^PingFang|^Heiti|YaHei|^DejaVu"
    r"|^[a-z] = tanh x|^loss = u|eps.*1/3|^eps / h|^if \(i"
    r"|from minidl.course(.student)? import"
    r"|^#!/usr|^name: Auto|^- name: ex|^EX\{|^\.venv/|^--student |^name=|^def \{0\}"
    r"|if __name__|^minidl check$|^`minidl class DIR"
    r"|^column (GFLOP/s|GB/s|MB|-)$|^Compiling entry|^n_rows n_epochs|^kernel arch|^what region"
    r"|^requests lanes|^arch threads|^gpu blocks|^\{0\} = np.ones"
    r"|^is of no use$|^the field \{0\} of a|^unknown message \{0\}|^the message \{0\} (has|came)"
    r"|^(array is|only) 0-dim|^zero-dim|^mpi4py mpich|^# Colab|^\{0\}from \{1\}|^\{0\} = np.zeros"
    r"|^t is 1$|^MPI$|^CuPy$|^AdamW$|^O2$")


def template(node):
    """(text with {0}, {1} for what is put in, the expressions that are); None: no string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value, []
    if isinstance(node, ast.JoinedStr):
        text, inside = "", []
        for part in node.values:
            if isinstance(part, ast.Constant):
                text += part.value
            else:
                text += f"{{{len(inside)}}}"
                inside.append(part.value)
        return text, inside
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = template(node.left), template(node.right)
        if left is None and right is None:
            return None
        left, right = left or ("{0}", [node.left]), right or ("{0}", [node.right])
        moved = re.sub(r"\{(\d+)\}", lambda n: f"{{{int(n[1]) + len(left[1])}}}", right[0])
        return left[0] + moved, left[1] + right[1]
    return None


def messages(text):
    """The messages of a source file, in order, each once."""
    tree, found, skipped = ast.parse(text), {}, set()
    for node in ast.walk(tree):
        has_docstring = isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef))
        if has_docstring and ast.get_docstring(node):
            if not getattr(node, "name", "").startswith("grade_"):  # it says what is checked
                skipped.add(node.body[0])
        # a grader's wrong answers, and the pieces that they are made of: WRONG, _PIECE
        if isinstance(node, ast.Assign) and re.fullmatch(
                "WRONG|_[A-Z]+" if "WRONG = {" in text else "WRONG",
                getattr(node.targets[0], "id", "")):
            skipped.add(node)

    def walk(node, is_shown=False):
        if node in skipped:
            return
        found_here = template(node) if isinstance(node, ast.expr) else None
        if found_here is not None:
            text, inside = found_here
            text = text.strip()
            letters = re.search("[A-Za-z]{2}", re.sub(r"\{\d\}", "", text))
            if is_shown == "column ":  # a word of a table: columns.py
                text = (is_shown + text) * bool(letters)
            if not NOT_SHOWN.search(text) and (
                    TWO_WORDS.search(re.sub(r"\{\d\}", "", text)) or is_shown and letters):
                found.setdefault(text)
            for part in inside:
                walk(part)
            return
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            strings = {"say": 1, "progress": 2}.get(name, 0)
            for i, argument in enumerate(node.args):
                if name == "Columns" and isinstance(argument, ast.Tuple):  # ("kernel", "<28")
                    walk(argument.elts[0], "column ")
                elif name == "word" and isinstance(argument, ast.Constant):
                    walk(argument, "column ")
                else:
                    walk(argument, name in SHOWN and i == strings)
            for keyword in node.keywords:
                walk(keyword.value, keyword.arg in LABELS)
            walk(node.func)
            return
        for child in ast.iter_child_nodes(node):
            walk(child)

    walk(tree)
    return list(found)
