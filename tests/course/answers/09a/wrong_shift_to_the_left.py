# wrong: shifted the other way: for odd p the last rank is inner in both trees, and not rank 0
second = [None] * p
for r, parent in enumerate(first):
    second[(r - 1) % p] = None if parent is None else (parent - 1) % p
return second
