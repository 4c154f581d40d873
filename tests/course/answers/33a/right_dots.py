# right: products of vectors
log_x = np.log(x)
y = np.log(loss)
u = log_x - log_x.mean()
slope = u @ y / (u @ u)
level = float(y.mean())
rest = y - level - slope * u
s = math.sqrt(rest @ rest / (len(u) - 2))
return [level, slope, s, s * len(u) ** -0.5, s * (u @ u) ** -0.5]
