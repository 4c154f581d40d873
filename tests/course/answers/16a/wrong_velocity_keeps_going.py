# wrong: the velocity of what was sent is not masked
u *= m
u += g
v += u
index = np.argsort(-np.abs(v))[:k]
value = v[index]
v[index] = 0
return index, value
