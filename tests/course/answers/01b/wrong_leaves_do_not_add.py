# wrong: only nodes add up; a leaf that is used twice keeps the last gradient
if isinstance(edge, tuple):
    gradient[producer] = gradient.get(producer, 0) + gx
else:
    gradient[producer] = gx
