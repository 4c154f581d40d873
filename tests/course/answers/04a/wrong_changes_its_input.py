# wrong: right sum, but it is made in x itself: the caller's numbers are gone
n = len(x)
while n > 1:
    half = n // 2
    for i in range(half):
        x[i] = x[2 * i] + x[2 * i + 1]
    if n % 2:
        x[half] = x[n - 1]
    n = half + n % 2
return x[0]
