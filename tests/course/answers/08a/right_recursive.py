# right: a bucket off the end, then the rest in the same way
def rest(n):
    if n == 0:
        return []
    stop, held = n, 0
    while stop > 0 and (stop == n or held < cap):
        stop -= 1
        held += sizes[stop]
    return [list(range(n - 1, stop - 1, -1)), *rest(stop)]

return rest(len(sizes))
