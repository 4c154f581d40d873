# wrong: the mask is in the order of the likeliest, p is not
order = np.argsort(-p, axis=1, kind="stable")
ordered = np.take_along_axis(p, order, 1)
sums = ordered.cumsum(1)
kept = np.where(sums - ordered < top_p, p, 0)
return kept / kept.sum(1, keepdims=True)
