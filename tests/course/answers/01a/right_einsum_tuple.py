# right: with einsum, and the gradients as a tuple of one
p = np.exp(x - np.reshape(y, (*y.shape, 1)))
return (np.einsum("...,...n->...n", gy, p),)
