# wrong: the gradient that came first is lost
gradient[producer] = gx
