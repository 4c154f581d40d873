# wrong: the power of t is missing
w *= 1 - lr * decay
m[...] = b1 * m + (1 - b1) * g
v[...] = b2 * v + (1 - b2) * g * g
m_hat = m / (1 - b1)
v_hat = v / (1 - b2)
w -= lr * m_hat / (np.sqrt(v_hat) + eps)
