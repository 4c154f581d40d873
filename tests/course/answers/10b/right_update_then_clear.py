# right: updates first and clears then; sorted items
waiting = [worker for worker in server.clocks if worker not in server.inbox]
if waiting or len(server.inbox) == 0:
    return
items = [push for _, push in sorted(server.inbox.items(), key=lambda item: item[0])]
n = sum(samples for _, samples in items)
mean = items[0][0] * (items[0][1] / n)
for gradient, samples in items[1:]:
    mean = mean + gradient * (samples / n)
server.update(mean)
server.inbox.clear()
