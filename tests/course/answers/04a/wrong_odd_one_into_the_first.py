# wrong: the odd one out is added to the first pair, round after round: more than log2(n) additions
while len(x) > 1:
    n = len(x) // 2 * 2
    y = x[0:n:2] + x[1:n:2]
    if len(x) % 2:
        y[0] += x[-1]
    x = y
return x[0]
