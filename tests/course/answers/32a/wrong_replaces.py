# wrong: gw has the last step's part alone
gx = gh * (1 - h * h)
gw[:] = gx.T @ before
return gx, gx @ w
