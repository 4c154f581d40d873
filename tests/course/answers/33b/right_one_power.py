# right: all under one power
n = (alpha * a / (beta * b) * (c / 6) ** beta) ** (1 / (alpha + beta))
return n, c / n / 6
