# wrong: no root
w *= 1 - lr * decay
m[...] = b1 * m + (1 - b1) * g
v[...] = b2 * v + (1 - b2) * g * g
m_hat = m / (1 - b1**t)
v_hat = v / (1 - b2**t)
w -= lr * m_hat / (v_hat + eps)
