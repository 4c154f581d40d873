# right: from each activation back to the line that makes what it reads
makers = graph.producers()
for node in [node for node in graph.nodes if node.op in ACTIVATIONS]:
    z = node.inputs[0]
    maker = makers.get(z)
    if maker is None or maker.op not in PRODUCTS or maker.steps:
        continue
    if z in graph.outputs or graph.users()[z] != [node]:
        continue
    maker.steps = (Step(node.op, node.kind, (("v", -1),), node.attributes),)
    maker.outputs = list(node.outputs)
    graph.nodes = [other for other in graph.nodes if other is not node]
    n += 1
