# right: np.average
mean = np.average(means.astype(float), axis=0, weights=counts)
return mean, m2s.sum(0) + np.asarray(counts) @ (means - mean) ** 2
