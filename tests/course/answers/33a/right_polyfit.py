# right: by np.polyfit
u = np.log(x) - np.log(x).mean()
(slope, level), cov = np.polyfit(u, np.log(loss), 1, cov=True)
rest = np.log(loss) - level - slope * u
s = (rest @ rest / (len(u) - 2)) ** 0.5
return level, slope, s, cov[1, 1] ** 0.5, cov[0, 0] ** 0.5
