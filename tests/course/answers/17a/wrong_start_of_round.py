# wrong: averages at the beginning of each round
start = next((i for i in range(1, len(rates)) if rates[i] < rates[i - 1]), len(rates))
return ["gradients" if i < start else "weights" if (i - start) % period == 0 else None
        for i in range(len(rates))]
