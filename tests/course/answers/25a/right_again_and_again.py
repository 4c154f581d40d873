# right: one rewriting at a time, until there is none
def pair():
    users = graph.users()
    for node in graph.nodes:
        found = users.get(node.output, ())
        if (node.op in PRODUCTS and not node.steps and len(found) == 1
                and found[0].op in ACTIVATIONS and node.output not in graph.outputs):
            return node, found[0]


while found := pair():
    product, act = found
    product.steps = (*product.steps, Step(act.op, act.kind, (("v", -1),), dict(act.attributes)))
    product.outputs[0] = act.output
    graph.nodes.remove(act)
    n += 1
