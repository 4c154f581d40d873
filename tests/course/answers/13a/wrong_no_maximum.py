# wrong: the formula as it stands
rows = np.arange(len(target))
e = np.exp(logits)
total = ring.all_reduce(t, e.sum(axis=1))
here = (target >= first) & (target < first + logits.shape[1])
column = np.where(here, target - first, 0)
x = ring.all_reduce(t, np.where(here, logits[rows, column], 0.0))
gradient = e / total[:, None]
gradient[rows[here], column[here]] -= 1
return np.log(total) - x, gradient
