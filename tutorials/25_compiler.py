"""25  Compiler: a network is a program.     60 minutes, needs: 02, 20

If the whole network is a list of lines, a compiler can rewrite the list before the network runs.

    python tutorials/25_compiler.py           one process; picture: out/25_compiler.png

    %0 = linear(x, w, b)            Each value (%0, %1, %2) is made by one line, and no other line
    %1 = relu(%0)                   changes it. This is called SSA. So the readers of %0 are the
    %2 = add(%1, x)                 lines that have %0 as an input.

    %2 = linear(x, w, b) then relu(.) then add(., x)        the three operations in one line

A **pass** is a function that rewrites the graph, the list of lines. It replaces a pattern wherever
the graph has it, and returns the number of replacements. Afterwards the graph must compute the same
results. For example, a pass moves an activation into the product before it (a linear or a matmul).
This is allowed only if no other line reads the product's result. After the pass no line makes this
result any more.

**Bytes.** Each line reads its inputs and writes its result. For n float32 numbers, a line with relu
moves 8 n bytes. If relu is done before the product's result is written, relu moves no bytes. A
launch costs about as much as some thousand multiplications. A pass saves bytes and launches. Most
passes leave the multiplications and additions as they are; algebra and folding remove some.

Sources: Cytron et al. 1991 (SSA); Chen et al. 2018 (TVM, arXiv 1802.04799), the fusion of injective
operations into products. Exercise: `minidl exercise 25` writes work/25_compiler.py with the marked
region empty; `minidl check 25` grades it.
"""

import numpy as np

import minidl
from minidl import infer, nn
from minidl.course.out import BLUE, ORANGE, box
from minidl.course.tutorial import Table, WrongOption, launch, picture, say
from minidl.infer.graph import Step, Value
from minidl.infer.passes import PASSES
from minidl.nn import functional as F

PRODUCTS = "linear", "matmul"
ACTIVATIONS = "relu", "sigmoid", "tanh", "gelu", "silu"


def fuse_activations(graph):
    """Moves activations into the products before them. Changes `graph`.

    Returns the number of activations that were moved."""
    n = 0
    # >>> exercise 25a: the activation after a product
    # A node of graph.nodes is a line. Look at each node whose op is in PRODUCTS and which has no
    # steps yet. Its readers are graph.users().get(node.output, []): a list of nodes. A node that
    # reads the value twice is in the list twice. The product takes over the reader if three things
    # hold: there is only one reader, the reader's op is in ACTIVATIONS, and node.output is not
    # among graph.outputs.
    # Then append Step(op, kind, (("v", -1),), attributes) to the tuple node.steps, with the
    # reader's op, kind and attributes. ("v", -1) stands for the product's own result. Set
    # node.outputs to the reader's outputs, remove the reader from graph.nodes, and add 1 to n.
    for node in list(graph.nodes):
        if node.op not in PRODUCTS or node.steps:
            continue
        readers = graph.users().get(node.output, [])
        if len(readers) != 1 or node.output in graph.outputs:
            continue
        reader, = readers
        if reader.op in ACTIVATIONS and not reader.steps:
            node.steps += Step(reader.op, reader.kind, (("v", -1),), reader.attributes),
            node.outputs = reader.outputs
            graph.nodes.remove(reader)
            n += 1
    # <<<
    return n


class Net(nn.Module):
    """A network in which each pass finds its pattern.

    It has a product with an activation, a product whose result is read by two lines, a residual, a
    multiplication by 1, two equal lines, and a line whose result no other line reads."""

    def __init__(self, width, generator):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(width, width, generator=generator) for _ in range(3))

    def forward(self, x):
        h = F.gelu(self.a(x))
        z = self.b(h)  # two lines read z, so its relu stays a line
        y = F.relu(z) * F.sigmoid(z) + h * 1.0
        self.c(y)  # no line reads this
        return F.tanh(self.c(y)) + F.tanh(self.c(y))


def n_bytes(graph):
    """Returns the bytes that all lines read and write, including the parameters.

    Each line counts as if it read from memory: caches are ignored."""
    total = 0
    for node in graph.nodes:
        read = {x for x in node.inputs if isinstance(x, Value)}  # each value counts once
        total += sum(v.n_bytes for v in read) + sum(v.n_bytes for v in node.outputs)
    return total


def main(t, args):
    if args.device != "cpu":
        raise WrongOption("wanted --device cpu, because plans run on the CPU only; got --device "
                          "cuda. 02_add3.py fuses on a GPU")
    table = Table(t)
    n = args.rows
    model = Net(args.width, minidl.Generator(0)).eval()
    x = minidl.Generator(1).normal(n, args.width)
    graph = infer.trace(model, x)
    say(t, "The network as a program:", graph)
    want = graph.run(x)
    plain = infer.compile(graph)
    numbers = 4 * n * args.width  # bytes of one value
    weights = 4 * args.width * (args.width + 1)
    # There are 5 products, 5 activations and 4 lines of arithmetic. An activation reads one value
    # and writes one value. Three lines of arithmetic read two values and write one value. The
    # fourth line, the multiplication by 1.0, reads only one value.
    table.row("lines as traced", graph.count(), 5 + 5 + 4, "exact")
    products = 5 * (2 * numbers + weights)
    activations = 5 * 2 * numbers
    arithmetic = 3 * 3 * numbers + 2 * numbers
    theory = products + activations + arithmetic
    table.row("bytes as traced", n_bytes(graph), theory, "exact")
    table.row("launches as traced", len(plain.launches), graph.count(), "exact")

    ours = infer.trace(model, x)
    before = ours.count()
    found = fuse_activations(ours)
    ours.verify()
    say(t, f"After fuse_activations, {found} times:", ours)
    table.row("activations in their products", found, 3, "exact")
    table.row("lines fewer, one for each", before - ours.count(), found, "exact")
    table.row("largest difference", float(np.abs(ours.run(x) - want).max()), 0.0, "exact")

    history = [("traced", graph.count(), n_bytes(graph), str(graph))]
    graph = infer.trace(model, x)
    counts = {}
    for one in PASSES:
        name = one.__name__
        k = one(graph.verify())
        counts[name] = counts.get(name, 0) + k
        if k:
            history.append((name, graph.count(), n_bytes(graph), str(graph)))
    say(t, f"After the library's passes {counts}:", graph)
    plan = infer.compile(graph)
    # The two lines are the second of the two equal products, and the tanh after this product.
    table.row("lines that repeat an earlier line", counts["common"], 2, "exact")
    # The passes remove 1 multiplication by 1, 1 product that no line reads, and 2 repeated lines.
    # They move 2 activations into products. One line replaces a chain of four, so 3 lines are gone.
    table.row("lines at the end", graph.count(), 14 - 1 - 1 - 2 - 2 - 3, "exact")
    table.row("launches at the end", len(plan.launches), graph.count(), "exact")
    table.row("bytes at the end / as traced", history[-1][2] / history[0][2], 0.6, "<=")
    # The sums are in float32, and the plan adds in a different order.
    table.row("the plan: largest difference", float(np.abs(plan(x).array - want).max()), 1e-5, "<=")
    table.row("arena / bound", plan.memory.arena / plan.memory.bound, 1.1, "<=")
    say(t, "", plan)
    picture(t, args, draw, history)
    return table


def draw(plt, history):
    """Draws the first and the last program (left). Right: the lines and the bytes after each
    pass."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(15, 6), width_ratios=(2, 1))
    for column, (name, _, _, text) in enumerate((history[0], history[-1])):
        lines = [line.split(" = ")[1].split("(")[0] + "".join(
            f" + {part.split('(')[0]}" for part in line.split(" then ")[1:])
            for line in text.splitlines()[1:-1]]
        for i, line in enumerate(lines):
            box(left, column, -i, line, fontsize=10)
        left.text(column, 1, "as traced" if not column else f"after {name}", ha="center")
    left.set(xlim=(-0.5, 1.5), ylim=(-history[0][1], 1.6), title="The program, line by line")
    left.axis("off")
    names = [name for name, *_ in history]
    right.plot([lines for _, lines, _, _ in history], "o-", color=BLUE, label="lines")
    right.plot([10 * size / history[0][2] for _, _, size, _ in history], "o-", color=ORANGE,
               label="bytes, traced = 10")
    right.set_xticks(range(len(names)), names, rotation=40, ha="right")
    right.set(ylim=(0, None), title="What each pass saves")
    right.legend()
    return figure


OPTIONS = {"rows": (64, "rows of the input"), "width": (64, "width of the layers")}

if __name__ == "__main__":
    launch(main, OPTIONS)
