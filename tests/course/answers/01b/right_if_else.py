# right: an if for the first one; the sum is a new array
if producer in gradient:
    gradient[producer] = gradient[producer] + gx
else:
    gradient[producer] = gx
