# right: each rank divides before the sum
flat = np.empty(sum(p.grad.array.size for p in parameters), parameters[0].grad.dtype)
end = 0
for p in parameters:
    flat[end : end + p.grad.array.size] = p.grad.array.ravel()
    end += p.grad.array.size
flat *= flat.dtype.type(1 / t.size)
all_reduce(t, flat)
for p in reversed(parameters):
    end -= p.grad.array.size
    np.copyto(p.grad.array, flat[end : end + p.grad.array.size].reshape(p.grad.shape))
