# right: the all-reduce across as its two halves
mine = ring.reduce_scatter(inside, x)
ring.reduce_scatter(across, mine)
ring.all_gather(across, mine)
ring.all_gather(inside, x)
