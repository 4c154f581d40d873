# wrong: all columns are stored
n_out = gy.shape[1]
of_tap, of_pixel = offsets(x.shape, kh, kw)
columns = x.ravel()[of_tap[:, None] + of_pixel]
gw = gy.transpose(1, 0, 2, 3).reshape(n_out, -1) @ columns.T
return gw.reshape(n_out, x.shape[1], kh, kw)
