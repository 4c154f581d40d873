# wrong: the push of a worker that has left is thrown away
if not server.inbox or any(worker not in server.inbox for worker in server.clocks):
    return
pushes = [server.inbox[worker] for worker in sorted(server.inbox) if worker in server.clocks]
server.inbox.clear()
if pushes:
    total = sum(n_samples for _, n_samples in pushes)
    server.update(sum(n_samples / total * gradient for gradient, n_samples in pushes))
