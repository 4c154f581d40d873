# right: a softmax of its own, shifted by each row's maximum; y is not needed
shifted = x - x.max(axis=-1, keepdims=True)
e = np.exp(shifted)
return np.expand_dims(gy, -1) * (e / e.sum(axis=-1, keepdims=True))
