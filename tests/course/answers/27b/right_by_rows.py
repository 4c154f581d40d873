# right: one row of the columns at a time, for all pixels
n_out = gy.shape[1]
of_tap, of_pixel = offsets(x.shape, kh, kw)
rows = gy.swapaxes(0, 1).reshape(n_out, -1)
flat = x.reshape(-1)
gw = np.stack([rows @ flat[of_pixel + start] for start in of_tap], axis=1)
return gw.reshape(n_out, x.shape[1], kh, kw)
