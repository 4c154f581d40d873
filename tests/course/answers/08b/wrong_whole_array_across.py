# wrong: right sums, but all g ranks of a node send the whole array to the other nodes
ring.all_reduce(inside, x)
ring.all_reduce(across, x)
x /= inside.size
