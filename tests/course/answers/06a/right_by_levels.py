# right: first all plans that run nothing twice, then one layer twice, and so on
n = len(sizes) - 1

def plans(start, twice):
    if start == n:
        if twice == 0:
            yield []
        return
    for stop in range(start + 1, n + 1):
        for rest in plans(stop, twice):
            yield [(start, stop, False), *rest]
        if stop - start <= twice:
            for rest in plans(stop, twice - (stop - start)):
                yield [(start, stop, True), *rest]

for twice in range(n + 1):
    for segments in plans(0, twice):
        if peak_bytes(sizes, segments) <= budget:
            return segments
return None
