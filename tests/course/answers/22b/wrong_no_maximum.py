# wrong: e^lse overflows where lse is 1000
e1, e2 = np.exp(lse1), np.exp(lse2)
total = e1 + e2
return (e1 / total)[..., None] * o1 + (e2 / total)[..., None] * o2, np.log(total)
