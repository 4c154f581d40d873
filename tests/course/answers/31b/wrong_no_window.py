# wrong: the window of a convolution is forgotten
return 2 / ((1 + slope**2) * shape[1])
