# right: by np.linalg.lstsq
u = np.log(x)
u = u - np.mean(u)
y = np.log(loss)
rows = np.stack([np.ones_like(u), u], axis=1)
(level, slope), *_ = np.linalg.lstsq(rows, y, rcond=None)
rest = y - rows @ [level, slope]
s = np.sqrt((rest**2).sum() / (len(y) - 2))
errors = s * np.sqrt(np.diag(np.linalg.inv(rows.T @ rows)))
return level, slope, s, errors[0], errors[1]
