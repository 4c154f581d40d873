# wrong: only N
g = (alpha * a / (beta * b)) ** (1 / (alpha + beta))
return g * (c / 6) ** (beta / (alpha + beta))
