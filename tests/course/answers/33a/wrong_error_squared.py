# wrong: the root is missing in the slope's error
log_x = np.log(x)
y = np.log(loss)
u = log_x - log_x.mean()
slope = np.sum(u * y) / np.sum(u**2)
level = np.mean(y)
rest = y - (level + slope * u)
s = np.sqrt(np.sum(rest**2) / (len(x) - 2))
return level, slope, s, s / np.sqrt(len(x)), s / np.sum(u**2)
