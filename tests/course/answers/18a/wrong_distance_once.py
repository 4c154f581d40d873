# wrong: the distance between means is not weighted
n = np.asarray(counts)[:, None]
mean = (n * means).sum(0) / n.sum()
return mean, m2s.sum(0) + ((means - mean) ** 2).sum(0)
