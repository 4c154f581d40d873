# wrong: a rate that climbs is taken for a decay
start = next((i for i, rate in enumerate(rates) if rate != rates[0]), len(rates))
return ["gradients" if i < start else "weights" if (i - start + 1) % period == 0 else None
        for i in range(len(rates))]
