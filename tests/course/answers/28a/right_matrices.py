# right: a matrix of E x E for each position; the gradient is a product with its transpose
n_tokens, width = x.shape[-2:]
half = width // 2
matrix = np.zeros((n_tokens, width, width))
for t in range(n_tokens):
    for i in range(half):
        angle = (first + t) * 10000.0 ** (-2 * i / width)
        matrix[t, i, i] = matrix[t, half + i, half + i] = np.cos(angle)
        matrix[t, i, half + i] = -np.sin(angle)
        matrix[t, half + i, i] = np.sin(angle)

def product(m, array):
    return np.einsum("tij,...tj->...ti", m, array).astype(array.dtype)

return product(matrix, x), lambda gy: product(matrix.swapaxes(1, 2), gy)
