# wrong: += changes the array in place, which another node may have returned for two inputs (add)
if producer in gradient:
    gradient[producer] += gx
else:
    gradient[producer] = gx
