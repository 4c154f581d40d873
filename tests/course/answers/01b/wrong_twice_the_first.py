# wrong: the first gradient is stored and then added once more
gradient.setdefault(producer, gx)
gradient[producer] = gradient[producer] + gx
