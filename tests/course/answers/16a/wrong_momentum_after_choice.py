# wrong: error feedback on the gradient alone, as if momentum came from the optimizer
u *= m
u += g
v += g
index = np.argsort(-np.abs(v))[:k]
value = v[index]
u[index] = 0
v[index] = 0
return index, value
