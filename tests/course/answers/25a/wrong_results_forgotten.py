# wrong: what the graph returns counts as read by nobody
for node in list(graph.nodes):
    readers = graph.users().get(node.output, [])
    if node.op in PRODUCTS and not node.steps and len(readers) == 1 and (
            readers[0].op in ACTIVATIONS):
        user = readers[0]
        node.steps += Step(user.op, user.kind, (("v", -1),), user.attributes),
        node.outputs = user.outputs
        graph.nodes.remove(user)
        n += 1
