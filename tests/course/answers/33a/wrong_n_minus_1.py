# wrong: the usual standard deviation
log_x = np.log(x)
y = np.log(loss)
u = log_x - log_x.mean()
slope = np.sum(u * y) / np.sum(u**2)
level = np.mean(y)
s = np.std(y - level - slope * u, ddof=1)
return level, slope, s, s / np.sqrt(len(x)), s / np.sqrt(np.sum(u**2))
