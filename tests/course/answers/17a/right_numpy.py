# right: the first negative difference
falls = np.flatnonzero(np.diff(rates) < 0)
start = falls[0] + 1 if len(falls) else len(rates)
return ["gradients" if i < start else "weights" if (i - start) % period == period - 1 else None
        for i in range(len(rates))]
