# right: a loop with a counter
sent, since = [], None
for i, rate in enumerate(rates):
    if since is None and i and rate < rates[i - 1]:
        since = 0
    if since is None:
        sent.append("gradients")
    else:
        since += 1
        sent.append(None if since % period else "weights")
return sent
