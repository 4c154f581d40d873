# wrong: the weighted sum is not divided by the samples
if not server.inbox or any(worker not in server.inbox for worker in server.clocks):
    return
pushes = [server.inbox[worker] for worker in sorted(server.inbox)]
server.inbox.clear()
server.update(sum(n_samples * gradient for gradient, n_samples in pushes))
