# wrong: the slope at the state before
gx = gh * (1 - before * before)
gw += gx.T @ before
return gx, gx @ w
