# wrong: the results in the other order
gx = gh * (1 - h * h)
gw += gx.T @ before
return gx @ w, gx
