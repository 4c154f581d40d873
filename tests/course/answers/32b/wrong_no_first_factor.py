# wrong: the factor of the first step is lost
a1, b1 = first
a2, b2 = second
return a2, a2 * b1 + b2
