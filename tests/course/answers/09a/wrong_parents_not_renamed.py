# wrong: the ranks are renamed, their parents are not
second = [None] * p
for r, parent in enumerate(first):
    second[p - 1 - r if p % 2 == 0 else (r + 1) % p] = parent
return second
