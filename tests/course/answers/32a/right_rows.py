# right: a row of the batch after the other
gx = np.zeros_like(gh)
gb = np.zeros_like(gh)
for i in range(len(gh)):
    gx[i] = gh[i] * (1 + h[i]) * (1 - h[i])
    gw += np.outer(gx[i], before[i])
    gb[i] = w.T @ gx[i]
return gx, gb
