# right: by einsum
gx = gh - gh * h * h
gw += np.einsum('nj,nk->jk', gx, before)
return gx, np.einsum('nj,jk->nk', gx, w)
