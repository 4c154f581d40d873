# right: each rank divides before the sum
flat = np.empty(sum(p.grad.size for p in parameters), parameters[0].grad.dtype)
end = 0
for p in parameters:
    flat[end : end + p.grad.size] = p.grad.ravel()
    end += p.grad.size
flat *= flat.dtype.type(1 / t.size)
all_reduce(t, flat)
for p in reversed(parameters):
    end -= p.grad.size
    np.copyto(p.grad, flat[end : end + p.grad.size].reshape(p.grad.shape))
