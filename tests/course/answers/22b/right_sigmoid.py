# right: o1 less what the second part pulls it over
with np.errstate(invalid="ignore", over="ignore"):
    pull = 1 / (1 + np.exp(lse1 - lse2))
pull = np.where(lse2 == -np.inf, 0, pull).astype(lse1.dtype)[..., None]
return o1 - pull * (o1 - o2.astype(lse1.dtype)), np.logaddexp(lse1, lse2)
