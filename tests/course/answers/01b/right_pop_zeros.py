# right: what was there is taken out, zeros if nothing was
before = gradient.pop(producer, None)
if before is None:
    before = np.zeros_like(gx)
gradient[producer] = before + gx
