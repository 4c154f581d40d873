# right: the shape is unpacked
_, inputs, *window = shape
return 2 / ((1 + slope * slope) * inputs * math.prod(window))
