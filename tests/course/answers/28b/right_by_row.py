# right: a loop over rows, and how many tokens stay by searchsorted
out = np.zeros_like(p)
for i, row in enumerate(p):
    order = np.argsort(-row, kind="stable")
    n = np.searchsorted(np.cumsum(row[order]), top_p) + 1
    stays = order[:n]
    out[i, stays] = row[stays] / row[stays].sum()
return out
