# wrong: the sum of a row is no longer 1
order = np.argsort(-p, axis=1, kind="stable")
ordered = np.take_along_axis(p, order, 1)
sums = ordered.cumsum(1)
stays = sums - ordered < top_p
kept = np.zeros_like(p)
np.put_along_axis(kept, order, np.where(stays, ordered, 0), 1)
return kept
