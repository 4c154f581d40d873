# wrong: one array only
a1, b1 = first
a2, b2 = second
return a2 * b1 + b2
