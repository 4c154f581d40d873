# wrong: the second step first
a1, b1 = first
a2, b2 = second
return a1 * a2, a1 * b2 + b1
