# right: the count so far goes from rank to rank
so_far = np.zeros(n_experts, np.int64)
if t.rank > 0:
    t.recv(so_far, t.rank - 1)
places_ = []
for e in choice.tolist():
    places_.append(so_far[e])
    so_far[e] += 1
if t.rank + 1 < t.size:
    t.send(so_far, t.rank + 1)
return np.array(places_, dtype=np.int64)
