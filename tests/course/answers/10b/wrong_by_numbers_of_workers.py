# wrong: waits for as many pushes as there are workers: one who left counts in place of one here
if not server.inbox or len(server.inbox) < len(server.clocks):
    return
pushes = [server.inbox[worker] for worker in sorted(server.inbox)]
total = sum(n_samples for _, n_samples in pushes)
server.inbox.clear()
server.update(sum(n_samples / total * gradient for gradient, n_samples in pushes))
