# right: nested calls
ring.all_reduce(across, ring.reduce_scatter(inside, x))
ring.all_gather(inside, x)
