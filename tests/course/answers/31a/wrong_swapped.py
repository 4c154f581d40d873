# wrong: b1 and b2 are swapped
w *= 1 - lr * decay
m[...] = b2 * m + (1 - b2) * g
v[...] = b1 * v + (1 - b1) * g * g
m_hat = m / (1 - b2**t)
v_hat = v / (1 - b1**t)
w -= lr * m_hat / (np.sqrt(v_hat) + eps)
