# right: by the gain
gain = math.sqrt(2 / (1 + slope**2))
return gain**2 / math.prod(shape[1:])
