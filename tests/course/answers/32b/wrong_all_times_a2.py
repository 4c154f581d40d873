# wrong: b2 is multiplied, too
a1, b1 = first
a2, b2 = second
return a1 * a2, a2 * (b1 + b2)
