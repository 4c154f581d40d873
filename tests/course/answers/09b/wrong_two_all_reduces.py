# wrong: the sum inside, then the sum across, all of x each time: g times the bytes between nodes
ring.all_reduce(inside, x)
ring.all_reduce(across, x)
