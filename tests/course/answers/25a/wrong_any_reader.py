# wrong: any line after a product is taken over
for node in list(graph.nodes):
    readers = graph.users().get(node.output, [])
    if node.op in PRODUCTS and not node.steps and len(readers) == 1 and (
            node.output not in graph.outputs):
        user = readers[0]
        node.steps += Step(user.op, user.kind, (("v", -1),), user.attributes),
        node.outputs = user.outputs
        graph.nodes.remove(user)
        n += 1
