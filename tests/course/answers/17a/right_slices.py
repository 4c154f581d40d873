# right: filled by slices
start = next((i for i in range(1, len(rates)) if rates[i] < rates[i - 1]), len(rates))
sent = [None] * len(rates)
sent[:start] = ["gradients"] * start
for end in range(start + period - 1, len(rates), period):
    sent[end] = "weights"
return sent
