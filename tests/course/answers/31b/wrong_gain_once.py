# wrong: the gain is not squared
gain = math.sqrt(2 / (1 + slope**2))
return gain / math.prod(shape[1:])
