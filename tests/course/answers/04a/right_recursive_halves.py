# right: two halves, the first a power of two long, which is the same tree from its root
if len(x) == 1:
    return x[0]
first = 1 << ((len(x) - 1).bit_length() - 1)
return pairwise(x[:first]) + pairwise(x[first:])
