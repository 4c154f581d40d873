# right: head by head and row by row
o = np.zeros(o1.shape, lse1.dtype)
lse = np.full(lse1.shape, -np.inf, lse1.dtype)
for h in range(lse1.shape[0]):
    for i in range(lse1.shape[1]):
        seen = [(a, b) for a, b in ((lse1[h, i], o1[h, i]), (lse2[h, i], o2[h, i])) if a > -np.inf]
        if seen:
            top = max(a for a, _ in seen)
            total = sum(np.exp(np.float64(a) - top) for a, _ in seen)
            o[h, i] = sum(np.exp(np.float64(a) - top) / total * b.astype(np.float64) for a, b in seen)
            lse[h, i] = top + np.log(total)
return o, lse
