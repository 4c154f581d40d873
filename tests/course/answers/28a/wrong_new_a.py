# wrong: the second line uses the a of the first
half = x.shape[-1] // 2
theta = 10000.0 ** (-2 * np.arange(half) / x.shape[-1])
angles = np.outer(first + np.arange(x.shape[-2]), theta)
cos, sin = np.cos(angles), np.sin(angles)

def turned(array, sin):
    out = array.copy()
    out[..., :half] = out[..., :half] * cos - out[..., half:] * sin
    out[..., half:] = out[..., half:] * cos + out[..., :half] * sin
    return out

return turned(x, sin), lambda gy: turned(gy, -sin)
