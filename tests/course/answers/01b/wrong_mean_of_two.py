# wrong: the mean of the gradients in place of their sum
if producer in gradient:
    gradient[producer] = (gradient[producer] + gx) / 2
else:
    gradient[producer] = gx
