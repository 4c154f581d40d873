"""25  Compiler: a network is a program.     60 minutes, needs: 02, 20

Whoever has the whole network as a list of lines can rewrite it before it runs.

    python tutorials/25_compiler.py           one process; picture: out/25_compiler.png

    %0 = linear(x, w, b)                a line makes each value once and nobody changes it (SSA), so
    %1 = relu(%0)                       whoever reads %0 is found by looking for %0
    %2 = add(%1, x)                     -> %2 = linear(x, w, b) then relu(.) then add(., x)

A **pass** is a function of the graph: it looks for a pattern, rewrites it, and says how often. The
graph must compute the same afterwards. So a product may take the activation after it only if that
is the product's only reader: anybody else would read a value that nobody makes any more.

**Bytes.** Each line reads its inputs and writes its result: n numbers are 8 n bytes for relu alone,
and none when it is done before the product's result is written. A launch costs about as much as
some thousand multiplications. Both fall with every pass; the arithmetic stays.

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
    """Let products do the activation after them; how many do now. In place."""
    n = 0
    # >>> exercise 25a: the activation after a product
    # For each node of graph.nodes whose op is in PRODUCTS and which has no steps yet: its readers
    # are graph.users().get(node.output, []), a list with a node for each input that reads it. If
    # there is one alone, its op is in ACTIVATIONS, and node.output is not among graph.outputs, the
    # product takes it over: append Step(op, kind, (("v", -1),), attributes) of the reader to
    # node.steps, a tuple ("v", -1 is the product's own result), let node.outputs be the reader's,
    # take the reader out of graph.nodes, and count.
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
    """A product with its activation, one whose result two lines read, a residual, arithmetic that
    changes nothing, the same line twice, and one that nobody reads."""

    def __init__(self, width, generator):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(width, width, generator=generator) for _ in range(3))

    def forward(self, x):
        h = F.gelu(self.a(x))
        z = self.b(h)  # read by two: its relu stays a line of its own
        y = F.relu(z) * F.sigmoid(z) + h * 1.0
        self.c(y)  # nobody reads this
        return F.tanh(self.c(y)) + F.tanh(self.c(y))


def n_bytes(graph):
    """What the lines read and write, parameters too: the traffic without caches."""
    total = 0
    for node in graph.nodes:
        read = {x for x in node.inputs if isinstance(x, Value)}  # each once
        total += sum(v.n_bytes for v in read) + sum(v.n_bytes for v in node.outputs)
    return total


def main(t, args):
    if args.device != "cpu":
        raise WrongOption("--device cuda: a plan is the CPU's; 02_add3.py fuses on a GPU")
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
    # 5 products; 5 activations read one value and write one; 4 lines read two: one of them a number
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
    table.row("a line less for each", before - ours.count(), found, "exact")
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
    # one of the two products that end in tanh, and its tanh
    table.row("lines that were there already", counts["common"], 2, "exact")
    # what nobody reads is gone with x * 1; a product takes its activation, a chain four lines
    table.row("lines at the end", graph.count(), 14 - 1 - 1 - 2 - 2 - 3, "exact")
    table.row("launches at the end", len(plan.launches), graph.count(), "exact")
    table.row("bytes at the end / as traced", history[-1][2] / history[0][2], 0.6, "<=")
    # float32 sums of `width` products, in another order
    table.row("the plan: largest difference", float(np.abs(plan(x).array - want).max()), 1e-5, "<=")
    table.row("arena / bound", plan.memory.arena / plan.memory.bound, 1.1, "<=")
    say(t, "", plan)
    picture(t, args, draw, history)
    return table


def draw(plt, history):
    """Left: the first and the last program. Right: launches and bytes, pass by pass."""
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


OPTIONS = {"rows": (64, "of the input"), "width": (64, "of the layers")}

if __name__ == "__main__":
    launch(main, OPTIONS)
