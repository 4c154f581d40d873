# right: a place of the window after the other, as the plain page does
n, c, oh, ow = len(x), x.shape[1], *gy.shape[2:]
gw = np.zeros((gy.shape[1], c, kh, kw))
for i in range(kh):
    for j in range(kw):
        for k in range(n):
            shifted = x[k, :, i:i + oh, j:j + ow].reshape(c, -1)
            gw[:, :, i, j] += gy[k].reshape(gy.shape[1], -1) @ shifted.T
return gw
