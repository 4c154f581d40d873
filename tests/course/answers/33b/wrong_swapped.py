# wrong: alpha in place of beta
g = (alpha * a / (beta * b)) ** (1 / (alpha + beta))
n = g * (c / 6) ** (alpha / (alpha + beta))
return n, c / 6 / n
