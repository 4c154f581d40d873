# wrong: scattered across the nodes first: the right sum, with K/g and K exchanged
chunk = ring.reduce_scatter(across, x)
ring.all_reduce(inside, chunk)
ring.all_gather(across, x)
