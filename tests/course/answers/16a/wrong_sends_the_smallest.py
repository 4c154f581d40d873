# wrong: the k smallest in magnitude
u *= m
u += g
v += u
index = np.argsort(np.abs(v))[:k]
value = v[index]
u[index] = 0
v[index] = 0
return index, value
