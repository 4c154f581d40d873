# right: in a copy, with the rest carried along
y, n = x.copy(), x.size
while n > 1:
    even = n - n % 2
    y[: even // 2] = y[0:even:2] + y[1:even:2]
    if n % 2:
        y[even // 2] = y[n - 1]
    n = (n + 1) // 2
return y[0]
