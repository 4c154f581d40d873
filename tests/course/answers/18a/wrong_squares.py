# wrong: E[x^2] - E[x]^2, in the float32 that came
n = np.asarray(counts, np.float32)[:, None]
total = n.sum()
mean = (n * means).sum(0) / total
squares = (m2s + n * means * means).sum(0) / total
return mean, (squares - mean * mean) * total
