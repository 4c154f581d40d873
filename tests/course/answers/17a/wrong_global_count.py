# wrong: rounds are counted from the first step of training
sent, local = [], False
for i, rate in enumerate(rates):
    local = local or i > 0 and rate < rates[i - 1]
    sent.append(("weights" if (i + 1) % period == 0 else None) if local else "gradients")
return sent
