# right: the standard library's heap, one element after the other
import heapq

for i in range(len(v)):
    u[i] = m * u[i] + g[i]
    v[i] = v[i] + u[i]
index = np.array(heapq.nlargest(k, range(len(v)), key=lambda i: abs(v[i])))
value = np.array([v[i] for i in index])
for i in index:
    u[i] = v[i] = 0
return index, value
