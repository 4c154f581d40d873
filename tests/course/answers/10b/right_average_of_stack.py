# right: np.average with weights over a stack
if server.inbox and all(worker in server.inbox for worker in server.clocks):
    order = sorted(server.inbox)
    gradients = np.stack([server.inbox[worker][0] for worker in order])
    samples = np.array([server.inbox[worker][1] for worker in order], gradients.dtype)
    server.inbox.clear()
    server.update(np.average(gradients, axis=0, weights=samples).astype(gradients.dtype))
