# wrong: the last of an odd number is dropped
while len(x) > 1:
    n = len(x) // 2 * 2
    x = x[0:n:2] + x[1:n:2]
return x[0]
