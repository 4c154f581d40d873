# wrong: rounds down, and lifts only 0
return max(n // block, 1)
