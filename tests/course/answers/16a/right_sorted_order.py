# right: a full sort, and the values negated twice on the way
u[:] = m * u + g
v[:] = v + u
order = np.argsort(np.abs(v))
index = order[len(order) - k:]
value = v[index].copy()
for array in (u, v):
    array[index] = 0.0
return index, value
