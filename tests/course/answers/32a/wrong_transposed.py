# wrong: w.T in place of w
gx = gh * (1 - h * h)
gw += gx.T @ before
return gx, gx @ w.T
