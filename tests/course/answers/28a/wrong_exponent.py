# wrong: i over E, where 2i over E is wanted
half = x.shape[-1] // 2
theta = 10000.0 ** (-np.arange(half) / x.shape[-1])
angles = np.outer(first + np.arange(x.shape[-2]), theta)

def turned(array, angles):
    a, b = np.split(array, 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(array.dtype)

return turned(x, angles), lambda gy: turned(gy, -angles)
