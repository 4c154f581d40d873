# right: a mask of the chosen elements, and products with it instead of assignments
u *= m
u += g
v += u
chosen = np.zeros(len(v), bool)
chosen[np.argsort(-abs(v), kind="stable")[:k]] = True
index = np.flatnonzero(chosen)
value = v[chosen]
u *= ~chosen
v *= ~chosen
return index, value
