# wrong: where all are sent a slice is used, a view of v, which is then cleared
u *= m
u += g
v += u
index = np.arange(len(v)) if k == len(v) else np.argsort(-np.abs(v))[:k]
value = v[:] if k == len(v) else v[index]
u[index] = 0
v[index] = 0
return index, value
