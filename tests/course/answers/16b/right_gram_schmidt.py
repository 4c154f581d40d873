# right: Gram and Schmidt's way to orthonormal columns
def orthonormal(x):
    x = x.copy()
    for i in range(x.shape[1]):
        for j in range(i):
            x[:, i] -= (x[:, j] @ x[:, i]) * x[:, j]
        x[:, i] /= np.linalg.norm(x[:, i])
    return x

residual += g
left = residual @ orthonormal(q)
ring.all_reduce(t, left)
left = orthonormal(left)
mine = residual.T @ left
residual -= left @ mine.T
ring.all_reduce(t, mine)
return left @ mine.T, mine
