# right: every rank one further, for even and odd p
second = [None] * p
for r in range(p):
    up = first[r]
    second[(r + 1) % p] = up if up is None else (up + 1) % p
return second
