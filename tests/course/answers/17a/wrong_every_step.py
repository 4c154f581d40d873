# wrong: weights are sent at each step
start = next((i for i in range(1, len(rates)) if rates[i] < rates[i - 1]), len(rates))
return ["gradients"] * start + ["weights"] * (len(rates) - start)
