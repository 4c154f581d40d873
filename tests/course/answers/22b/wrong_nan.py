# wrong: where both saw nothing it computes -inf less -inf
both = np.logaddexp(lse1, lse2)
return np.exp(lse1 - both)[..., None] * o1 + np.exp(lse2 - both)[..., None] * o2, both
