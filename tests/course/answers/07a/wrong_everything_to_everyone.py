# wrong: the whole array goes round, p times the bytes
total, moving = x.copy(), x.copy()
for s in range(p - 1):
    moving = t.sendrecv(moving, right, np.empty_like(x), left).copy()
    total += moving
x[...] = total
