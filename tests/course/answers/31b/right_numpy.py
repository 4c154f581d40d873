# right: in NumPy
return np.float64(2) / (1 + slope**2) / np.prod(shape[1:])
