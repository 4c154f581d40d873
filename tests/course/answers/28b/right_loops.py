# right: token after token, with Python's own sort
out = np.zeros(p.shape, p.dtype)
for n in range(len(p)):
    together = 0.0
    for v in sorted(range(p.shape[1]), key=lambda v: (-p[n, v], v)):
        if together >= top_p:
            break
        out[n, v] = p[n, v]
        together += float(p[n, v])
    out[n] /= out[n].sum()
return out
