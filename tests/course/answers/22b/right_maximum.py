# right: the larger one taken out by hand
m = np.maximum(lse1, lse2)
m = np.where(np.isneginf(m), np.zeros_like(m), m)
e1, e2 = np.exp(lse1 - m), np.exp(lse2 - m)
total = e1 + e2
nothing = total == 0
total = np.where(nothing, np.ones_like(total), total)
o = (e1 / total)[..., np.newaxis] * o1 + (e2 / total)[..., np.newaxis] * o2
return o, np.where(nothing, -np.inf, m + np.log(total)).astype(lse1.dtype)
