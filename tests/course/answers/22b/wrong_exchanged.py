# wrong: each part has the other's weight
both = np.logaddexp(lse1, lse2)
safe = np.where(both == -np.inf, 0, both)
return np.exp(lse2 - safe)[..., None] * o1 + np.exp(lse1 - safe)[..., None] * o2, both
