# right: a point is a complex number, and a rotation is a product
half = x.shape[-1] // 2
position = np.arange(first, first + x.shape[-2])
turn = np.exp(1j * position[:, None] * 10000.0 ** (-np.arange(half) / half))

def times(array, factor):
    z = (array[..., :half] + 1j * array[..., half:]) * factor
    return np.concatenate([z.real, z.imag], -1).astype(array.dtype)

return times(x, turn), lambda gy: times(gy, turn.conj())
