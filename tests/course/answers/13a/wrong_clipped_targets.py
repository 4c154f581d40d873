# wrong: a target of other words is clipped to the nearest column, and its logit added
rows = np.arange(len(target))
top = ring.all_reduce(t, logits.max(axis=1), np.maximum)
e = np.exp(logits - top[:, None])
total = ring.all_reduce(t, e.sum(axis=1))
column = np.clip(target - first, 0, logits.shape[1] - 1)
x = ring.all_reduce(t, logits[rows, column].copy())
gradient = e / total[:, None]
gradient[rows, column] -= 1
return top + np.log(total) - x, gradient
