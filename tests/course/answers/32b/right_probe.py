# right: from the results for h = 0 and h = 1
def both(h):
    return second[0] * (first[0] * h + first[1]) + second[1]
return both(1) - both(0), both(0)
