# wrong: the larger lse is kept, and the weights are relative to it: they add up to more than 1
top = np.maximum(lse1, lse2)
safe = np.where(top == -np.inf, 0, top)
return np.exp(lse1 - safe)[..., None] * o1 + np.exp(lse2 - safe)[..., None] * o2, top
