# wrong: rounds to the nearest, which is down for a small rest
return max(1, round(n / block))
