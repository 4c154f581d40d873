# wrong: x over y
log_x = np.log(x)
y = np.log(loss)
u = log_x - log_x.mean()
v = y - y.mean()
slope = np.sum(v**2) / np.sum(u * v)
slope = 1 / slope
level = y.mean()
rest = y - (level + slope * u)
s = np.sqrt(np.sum(rest**2) / (len(x) - 2))
return level, slope, s, s / np.sqrt(len(x)), s / np.sqrt(np.sum(u**2))
