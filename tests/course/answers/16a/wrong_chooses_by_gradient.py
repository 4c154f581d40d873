# wrong: the choice looks at this step's gradient, not at what has been waiting
u *= m
u += g
v += u
index = np.argsort(-np.abs(g))[:k]
value = v[index]
u[index] = 0
v[index] = 0
return index, value
