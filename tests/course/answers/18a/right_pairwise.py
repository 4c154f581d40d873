# right: one share after the other
total, mean, m2 = 0, np.zeros(means.shape[1]), np.zeros(means.shape[1])
for mean_k, m2_k, n in zip(means, m2s, counts):
    if n:
        apart = mean_k - mean
        m2 = m2 + m2_k + apart**2 * total * n / (total + n)
        mean = mean + apart * n / (total + n)
        total += n
return mean, m2
