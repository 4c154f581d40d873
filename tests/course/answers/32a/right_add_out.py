# right: with np.add and its argument out
gx = np.multiply(gh, 1 - np.square(h))
np.add(gw, gx.T @ before, out=gw)
return [gx, np.dot(gx, w)]
