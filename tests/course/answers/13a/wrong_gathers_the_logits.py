# wrong: all logits come to all ranks, and the loss is computed as on one
widths = np.zeros(t.size)
widths[t.rank] = logits.shape[1]
ring.all_reduce(t, widths)
whole = np.zeros((len(target), int(widths.sum())))
whole[:, first : first + logits.shape[1]] = logits
ring.all_reduce(t, whole)
e = np.exp(whole - whole.max(axis=1, keepdims=True))
p = e / e.sum(axis=1, keepdims=True)
rows = np.arange(len(target))
loss = -np.log(p[rows, target])
p[rows, target] -= 1
return loss, p[:, first : first + logits.shape[1]]
