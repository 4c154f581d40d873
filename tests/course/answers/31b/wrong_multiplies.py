# wrong: multiplies by the part that is kept
return (1 + slope**2) / 2 / math.prod(shape[1:])
