# right: in-place operations alone
w *= 1 - lr * decay
m *= b1
m += (1 - b1) * g
v *= b2
v += (1 - b2) * g**2
root = np.sqrt(v / (1 - b2**t))
root += eps
w -= lr * (m / (1 - b1**t)) / root
