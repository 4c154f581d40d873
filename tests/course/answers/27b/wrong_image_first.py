# wrong: gy keeps its image in front
n_out = gy.shape[1]
of_tap, of_pixel = offsets(x.shape, kh, kw)
gy = gy.reshape(n_out, -1)
gw = np.zeros((n_out, len(of_tap)))
for p in range(0, len(of_pixel), step):
    gw += gy[:, p:p + step] @ x.ravel()[of_tap[:, None] + of_pixel[p:p + step]].T
return gw.reshape(n_out, x.shape[1], kh, kw)
