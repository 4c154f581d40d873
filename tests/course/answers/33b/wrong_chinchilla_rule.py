# wrong: 20 tokens for each parameter
n = (c / 120) ** 0.5
return n, 20 * n
