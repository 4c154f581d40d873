# wrong: equal numbers of layers a segment, although the layers are unequal
n = len(sizes) - 1
for k in range(1, n + 1):
    segments = equal_segments(n, k)
    if peak_bytes(sizes, segments) <= budget:
        return segments
return None
