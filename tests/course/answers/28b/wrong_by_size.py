# wrong: everything that is as likely as the last kept token stays
order = np.argsort(-p, axis=1, kind="stable")
ordered = np.take_along_axis(p, order, 1)
sums = ordered.cumsum(1)
n = (sums < top_p).sum(1, keepdims=True).clip(max=p.shape[1] - 1)
kept = np.where(p >= np.take_along_axis(ordered, n, 1), p, 0)
return kept / kept.sum(1, keepdims=True)
