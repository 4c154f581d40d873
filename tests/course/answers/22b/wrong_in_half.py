# wrong: in the dtype of the parts, which rounds at each merge
both = np.logaddexp(lse1, lse2)
safe = np.where(both == -np.inf, 0, both)
w1, w2 = np.exp(lse1 - safe)[..., None], np.exp(lse2 - safe)[..., None]
return (w1 * o1 + w2 * o2).astype(o1.dtype), both
