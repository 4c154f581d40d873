# wrong: u and v are new arrays, the caller's stay as they were
u = m * u + g
v = v + u
index = np.argsort(-np.abs(v))[:k]
value = v[index]
u[index] = 0
v[index] = 0
return index, value
