# right: a mask in order, brought back by the inverse order
order = np.argsort(-p, axis=1, kind="stable")
sums = np.take_along_axis(p, order, 1).cumsum(1)
stays = np.ones(p.shape, bool)
stays[:, 1:] = sums[:, :-1] < top_p
rank = np.argsort(order, axis=1)
kept = p * np.take_along_axis(stays, rank, 1)
return kept / kept.sum(1, keepdims=True)
