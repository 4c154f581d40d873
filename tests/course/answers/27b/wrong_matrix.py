# wrong: gw stays a matrix
n_out = gy.shape[1]
of_tap, of_pixel = offsets(x.shape, kh, kw)
gy = gy.transpose(1, 0, 2, 3).reshape(n_out, -1)
gw = np.zeros((n_out, len(of_tap)))
for p in range(0, len(of_pixel), step):
    gw += gy[:, p:p + step] @ x.ravel()[of_tap[:, None] + of_pixel[p:p + step]].T
return gw
