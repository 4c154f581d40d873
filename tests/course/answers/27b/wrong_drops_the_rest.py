# wrong: the last pixels, fewer than step, are left out
n_out = gy.shape[1]
of_tap, of_pixel = offsets(x.shape, kh, kw)
gy = gy.transpose(1, 0, 2, 3).reshape(n_out, -1)
gw = np.zeros((n_out, len(of_tap)))
for block in range(len(of_pixel) // step):
    p = slice(block * step, (block + 1) * step)
    gw += gy[:, p] @ x.ravel()[of_tap[:, None] + of_pixel[p]].T
return gw.reshape(n_out, x.shape[1], kh, kw)
