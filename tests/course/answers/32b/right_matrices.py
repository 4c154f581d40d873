# right: as products of matrices of two rows
a1, b1 = first
a2, b2 = second
one, zero = np.ones_like(a1), np.zeros_like(a1)
m1 = np.moveaxis(np.array([[a1, b1], [zero, one]]), (0, 1), (-2, -1))
m2 = np.moveaxis(np.array([[a2, b2], [zero, one]]), (0, 1), (-2, -1))
m = m2 @ m1
return m[..., 0, 0], m[..., 0, 1]
