# right: in place, but into a copy of one's own
if producer not in gradient:
    gradient[producer] = np.array(gx, copy=True)
else:
    gradient[producer] = np.add(gradient[producer], gx)
