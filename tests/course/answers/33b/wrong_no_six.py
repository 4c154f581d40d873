# wrong: C = N D
g = (alpha * a / (beta * b)) ** (1 / (alpha + beta))
n = g * c ** (beta / (alpha + beta))
return n, c / n
