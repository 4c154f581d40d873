# wrong: gathered before the sum over the nodes: only the own chunk is complete
chunk = ring.reduce_scatter(inside, x)
ring.all_gather(inside, x)
ring.all_reduce(across, chunk)
