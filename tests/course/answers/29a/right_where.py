# right: the new maximum by where, the sums by einsum
top = np.amax(s, axis=-1, keepdims=True)
top = np.where(top > m, top, m)
weights = np.exp(s - top)
factor = np.exp(m - top)
total = factor * total
total = total + np.einsum("rn->r", weights)[:, None]
return top, total, factor * o + np.einsum("rn,ne->re", weights, v)
