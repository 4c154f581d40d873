# wrong: the order of small to large, read backwards, turns equal tokens around
order = np.argsort(p, axis=1, kind="stable")[:, ::-1]
ordered = np.take_along_axis(p, order, 1)
stays = ordered.cumsum(1) - ordered < top_p
kept = np.zeros_like(p)
np.put_along_axis(kept, order, np.where(stays, ordered, 0), 1)
return kept / kept.sum(1, keepdims=True)
