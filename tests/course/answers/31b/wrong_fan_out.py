# wrong: outputs instead of inputs
fan_out = shape[0] * math.prod(shape[2:])
return 2 / ((1 + slope**2) * fan_out)
