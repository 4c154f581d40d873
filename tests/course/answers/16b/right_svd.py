# right: orthonormal columns of the same span by a singular value decomposition
def basis(x):
    return np.linalg.svd(x, full_matrices=False)[0]

a = g + residual
p = basis(ring.all_reduce(t, a @ basis(q)))
own = a.T @ p
total = ring.all_reduce(t, own.copy())
np.copyto(residual, a - np.outer(p[:, 0], own[:, 0]) if p.shape[1] == 1 else a - p @ own.T)
return p @ total.T, total
