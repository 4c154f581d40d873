# wrong: the step forgets which gelu it is
for node in list(graph.nodes):
    readers = graph.users().get(node.output, [])
    if node.op in PRODUCTS and not node.steps and len(readers) == 1 and (
            readers[0].op in ACTIVATIONS) and node.output not in graph.outputs:
        user = readers[0]
        node.steps += Step(user.op, user.kind, (("v", -1),), dict()),
        node.outputs = user.outputs
        graph.nodes.remove(user)
        n += 1
