# right: D first, by symmetry
d = (beta * b / (alpha * a)) ** (1 / (alpha + beta)) * (c / 6) ** (alpha / (alpha + beta))
return c / (6 * d), d
