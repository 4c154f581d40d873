# wrong: the points are neighbours, as in the paper, and not two halves
half = x.shape[-1] // 2
theta = 10000.0 ** (-2 * np.arange(half) / x.shape[-1])
angles = np.outer(first + np.arange(x.shape[-2]), theta)

def turned(array, angles):
    cos, sin = np.cos(angles), np.sin(angles)
    out = np.empty_like(array)
    out[..., 0::2] = array[..., 0::2] * cos - array[..., 1::2] * sin
    out[..., 1::2] = array[..., 1::2] * cos + array[..., 0::2] * sin
    return out

return turned(x, angles), lambda gy: turned(gy, -angles)
