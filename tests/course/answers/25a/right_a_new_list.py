# right: the lines in a new list, readers counted once before
count, gone = {}, set()
for node in graph.nodes:
    for v in node.values:
        count[v] = count.get(v, 0) + 1
for v in graph.outputs:
    count[v] = count.get(v, 0) + 1
for node in graph.nodes:
    if node.op in PRODUCTS and not node.steps and count.get(node.output) == 1:
        after = next((m for m in graph.nodes if node.output in m.values), None)
        if after is not None and after.op in ACTIVATIONS:
            node.steps = Step(after.op, after.kind, (("v", -1),), after.attributes),
            node.outputs = [after.output]
            gone.add(after)
graph.nodes = [node for node in graph.nodes if node not in gone]
n = len(gone)
