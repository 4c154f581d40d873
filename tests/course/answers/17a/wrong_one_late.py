# wrong: the step of the decay still averages gradients
sent, local, since = [], False, 0
for i, rate in enumerate(rates):
    if local:
        since += 1
        sent.append("weights" if since % period == 0 else None)
    else:
        sent.append("gradients")
    local = local or i > 0 and rate < rates[i - 1]
return sent
