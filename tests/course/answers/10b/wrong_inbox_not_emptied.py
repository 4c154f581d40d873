# wrong: the inbox keeps the old pushes, and every later push makes an update
if not server.inbox or any(worker not in server.inbox for worker in server.clocks):
    return
pushes = [server.inbox[worker] for worker in sorted(server.inbox)]
total = sum(n_samples for _, n_samples in pushes)
server.update(sum(n_samples / total * gradient for gradient, n_samples in pushes))
