# right: sets, and a loop that adds up
inbox = server.inbox
if inbox and set(server.clocks) <= set(inbox):
    total, weighted = 0, 0.0
    for worker in sorted(inbox):
        gradient, n_samples = inbox[worker]
        weighted = weighted + n_samples * gradient
        total += n_samples
    inbox.clear()
    server.update(weighted / total)
