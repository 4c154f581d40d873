# wrong: the library's own ring does the work: that is not the exercise
ring.reduce_scatter(t, x)
