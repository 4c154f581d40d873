# right: distances to the first share, in float64
n = np.asarray(counts, float)
shifted = means.astype(float) - means[0]
mean = n @ shifted / n.sum()
return means[0] + mean, m2s.sum(0) + n @ shifted**2 - n.sum() * mean**2
