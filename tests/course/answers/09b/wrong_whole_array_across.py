# wrong: over the nodes first, and all of x: the right sum, g times the bytes between nodes
ring.all_reduce(across, x)
ring.reduce_scatter(inside, x)
ring.all_gather(inside, x)
