"""Grades work/25_compiler.py.   Test: tests/tutorials/test_exercises.py"""

import numpy as np

import minidl
from minidl import infer
from minidl.course.grade import Wrong
from minidl.infer.graph import Step
from minidl.nn import functional as F

SEED = 0  # `minidl check --student NAME` sets another one for each student
ACTIVATIONS = "relu", "sigmoid", "tanh", "gelu", "silu"


def weight(i, *shape):
    return minidl.tensor(minidl.Generator(SEED + 1, i).normal(*shape or (6, 6)))


def dense(x, i=0):
    return F.linear(x, weight(i), weight(i + 10, 6))


def two_readers(x):
    z = dense(x)
    return F.relu(z) * F.sigmoid(z)


def one_of_them_no_activation(x):
    z = dense(x)
    return F.tanh(z) + z


def returned(x):
    z = dense(x)
    return z, F.relu(z)


def layers(x):
    for i in range(4):
        x = F.silu(dense(x, i))
    return dense(x, 4)


def later(x):
    z, y = dense(x), dense(x * 2, 1)
    y = F.sigmoid(y + 1)
    return F.relu(z) + y


PROGRAMS = {
    "a layer": lambda x: F.relu(dense(x)),
    "each activation": lambda x: sum(getattr(F, name)(dense(x, i))
                                     for i, name in enumerate(ACTIVATIONS)),
    "gelu with an attribute": lambda x: F.gelu(dense(x), approximate="tanh"),
    "four layers and one without": layers,
    "matmul": lambda x: F.tanh(x @ weight(3)),
    "two activations read the product": two_readers,
    "an activation and an addition read the product": one_of_them_no_activation,
    "the product is returned": returned,
    "no product": lambda x: F.relu(x + 1),
    "an addition in between": lambda x: F.relu(dense(x) + 1),
    "two activations in a row": lambda x: F.tanh(F.relu(dense(x))),
    "other lines in between": later,
    "softmax": lambda x: F.softmax(dense(x), -1),
}
HINTS = {
    "two activations read the product": "The product has two readers. If it takes over one, the "
    "other would read a value that no line makes",
    "an activation and an addition read the product": "The product has two readers, and the "
    "addition needs the value before the activation",
    "the product is returned": "The product's own result is among graph.outputs",
    "an addition in between": "The product's reader is add, which is no activation",
    "no product": "Only products take an activation over",
    "softmax": "softmax is not in ACTIVATIONS: it needs a whole row",
    "two activations in a row": "Leave a product that has a step as it is: one activation each",
}


def program(name):
    return infer.trace(PROGRAMS[name], minidl.tensor(given()))


def given():
    return minidl.Generator(SEED + 5).normal(3, 6)


def fused(module, name):
    """Returns (the answer, the graph's text, its error or "", its results)."""
    graph = program(name)
    n = module.fuse_activations(graph)
    n = n if isinstance(n, int) else repr(n)
    try:
        graph.verify()
        results = graph.run(given())
    except Exception as error:
        return n, str(graph.count()), str(error), []
    return n, str(graph), "", [np.asarray(y) for y in (
        results if isinstance(results, tuple) else (results,))]


def reference(graph):
    n = 0
    for node in list(graph.nodes):
        users = graph.users().get(node.output, [])
        if node.op in ("linear", "matmul") and len(users) == 1 and (
                users[0].op in ACTIVATIONS and node.output not in graph.outputs):
            user, = users
            node.steps += Step(user.op, user.kind, (("v", -1),), user.attributes),
            node.outputs = user.outputs
            graph.nodes.remove(user)
            n += 1
    return n


def grade_25a(student):
    """programs before and after: only what may be fused is fused, and the results stay."""
    for name in PROGRAMS:
        plain, want = program(name), program(name)
        n = reference(want)
        count, text, error, results = student.run(fused, name)
        if error:
            raise Wrong(f"{name}: the graph no longer runs: {error}. {_broken(name, error)}")
        if text != str(want):
            cause = _cause(name, plain, text)
            raise Wrong(f"{name}: the program is\n{text}\nwant\n{want}\n{cause}")
        if count != n:
            raise Wrong(f"{name}: fused {n} times, as wanted, but fuse_activations returned "
                        f"{count}. Return the number of products that got an activation")
        expected = plain.run(given())
        expected = expected if isinstance(expected, tuple) else (expected,)
        for y, x in zip(results, expected, strict=True):
            if y.shape != x.shape or not (y == x).all():
                cause = ("The reader's attributes belong to the step"
                         if name == "gelu with an attribute" else "Does the step have the "
                         "reader's kind?")
                raise Wrong(f"{name}: the program looks right, but its results differ. {cause}")
        if name in ("four layers and one without", "the product is returned", "softmax"):
            yield f"{name}: as it should be"


def _broken(name, error):
    if name in HINTS:
        return HINTS[name]
    if "is there already" in error or any(f", {op}: reads" in error for op in ACTIVATIONS):
        return "The activation's line is still in graph.nodes"
    if "no line" in error:
        return "The product makes the values that its reader made: set node.outputs"
    return "A step's operands are ((\"v\", -1),): the product's own result"


def _cause(name, plain, text):
    if text == str(plain):
        return "Nothing was fused"
    return HINTS.get(name, "Is every product with one activation after it found?")


WRONG = {
    "25a": {
        "other readers are overlooked": (
            {"len(readers) != 1 or node.output in graph.outputs": "not readers",
             "reader, = readers": "reader = readers[0]"}, "The product has two readers"),
        "the graph's results are overlooked": (
            {" or node.output in graph.outputs": ""}, "among graph.outputs"),
        "the reader stays": ({"graph.nodes.remove(reader)": "pass"}, "still in graph.nodes"),
        "the product keeps its name": ({"node.outputs = reader.outputs": "pass"},
                                       "makes the values that its reader made"),
        "any reader": ({"reader.op in ACTIVATIONS and not reader.steps": "True"}, "reader is add"),
        "any node": ({"node.op not in PRODUCTS or node.steps": "node.steps"},
                     "Only products take"),
        "without attributes": ({"reader.attributes": "{}"}, "attributes belong to the step"),
        "does not count": ({"n += 1": "pass"}, "returned 0"),
        "the first alone": ({"n += 1": "return 1"}, "Is every product"),
    },
}
