# wrong: added in float64 and rounded at the end: not in x's type
y = x.astype(np.float64)
while len(y) > 1:
    pairs = y[: len(y) // 2 * 2]
    y = np.concatenate([pairs[0::2] + pairs[1::2], y[len(pairs):]])
return x.dtype.type(y[0])
