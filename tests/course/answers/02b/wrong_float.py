# wrong: a float
return float(-(-n // block))
