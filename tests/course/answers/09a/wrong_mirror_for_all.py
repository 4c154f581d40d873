# wrong: the mirror image for odd p, too, where it leaves even ranks even
second = [None] * p
for r, parent in enumerate(first):
    second[p - 1 - r] = None if parent is None else p - 1 - parent
return second
