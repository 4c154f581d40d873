# wrong: divides by the share's samples, of which there may be none
n = np.asarray(counts, float)[:, None]
mean = (n * means).sum(0) / n.sum()
return mean, (n * (m2s / n + (means - mean) ** 2)).sum(0)
