# wrong: writes into the first pair
a1, b1 = first
a2, b2 = second
b1 *= a2
b1 += b2
return a1 * a2, b1
