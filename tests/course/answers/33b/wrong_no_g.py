# wrong: G is left out
n = (c / 6) ** (beta / (alpha + beta))
return n, c / 6 / n
