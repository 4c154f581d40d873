# wrong: the softmax without the gradient that arrives; right only for gy = 1
return np.exp(x - y[..., None])
