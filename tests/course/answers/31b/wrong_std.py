# wrong: the standard deviation
fan_in = math.prod(shape[1:])
return math.sqrt(2 / ((1 + slope**2) * fan_in))
