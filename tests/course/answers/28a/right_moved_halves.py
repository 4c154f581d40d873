# right: x cos + (-b, a) sin, and the gradient by the transposed move
width = x.shape[-1]
theta = 1 / 10000.0 ** (np.arange(0, width, 2) / width)
angle = np.arange(first, first + x.shape[-2])[:, None] * np.concatenate([theta, theta])
cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)

def moved(array):
    a, b = np.split(array, 2, axis=-1)
    return np.concatenate([-b, a], axis=-1)

def backward(gy):
    return gy * cos - moved(gy) * sin

return x * cos + moved(x) * sin, backward
