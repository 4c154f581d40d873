# wrong: the derivative of the softmax is taken where the softmax itself is the derivative
p = np.exp(x - y[..., None])
return gy[..., None] * p * (1 - p)
