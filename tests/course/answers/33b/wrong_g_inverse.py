# wrong: G upside down
g = (beta * b / (alpha * a)) ** (1 / (alpha + beta))
n = g * (c / 6) ** (beta / (alpha + beta))
return n, c / 6 / n
