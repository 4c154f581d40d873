"""The parameter server: one rank holds the weights, and the others compute gradients for it.

    rank 0, the server      the weights, and the optimizer
        │ ▲
        ▼ │                 down: the weights        up: a gradient
    ranks 1, 2, 3, workers  each has its own samples

    together    the server waits for the gradients of all workers, and takes one step with their
                mean. This is data parallel training. All workers wait for the slowest one
    in turn     the server takes a step with the gradient of one worker, sends the new weights
                only to that worker, and turns to the next one. No worker waits for a mean. But a
                gradient is stale: while a worker computed it, every other worker has changed the
                weights once. With N workers it comes from weights that are N-1 steps old

If the weights have K bytes, each worker receives K and sends K in a step. So the server sends N K
and receives N K. The server is the bottleneck: in a ring every rank sends less than 2 K (page
ring).

A stale step goes in a direction that was right N-1 steps ago. So the rate must be smaller.
Otherwise the weights go past the minimum. In the example the minimum is at 0.

Papers: Li et al., "Scaling Distributed Machine Learning with the Parameter Server", 2014; Dean et
al., "Large Scale Distributed Deep Networks", 2012. This page is the plain version. The real one,
minidl/parallel/server/server.py and minidl/parallel/server/worker.py, adds: several servers, each
with a part of the weights; workers that are served in the order in which they come; a bound for the
staleness; and workers that fail.
"""

import numpy as np


def work(t, weights, gradient, n_steps):
    """Runs a worker. gradient(weights) returns the gradient over this worker's samples.

    weights: a vector. It is overwritten by the weights that the server sends."""
    t.recv(weights, 0)
    for _ in range(n_steps):
        t.send(gradient(weights), 0)
        t.recv(weights, 0)


def serve_together(t, weights, n_steps, rate):
    """Runs the server. Each step uses the mean of all workers' gradients."""
    workers = range(1, t.size)
    for worker in workers:
        t.send(weights, worker)
    for _ in range(n_steps):
        gradients = [t.recv(np.empty_like(weights), worker) for worker in workers]
        weights -= rate * (sum(gradients) / len(workers))
        for worker in workers:
            t.send(weights, worker)


def serve_in_turn(t, weights, n_steps, rate):
    """Runs the server. The server takes one step with each gradient, worker after worker."""
    workers = range(1, t.size)
    for worker in workers:
        t.send(weights, worker)
    for _ in range(n_steps):
        for worker in workers:
            weights -= rate * t.recv(np.empty_like(weights), worker)
            t.send(weights, worker)


if __name__ == "__main__":
    from minidl.comm import simulate

    def example(t, serve):
        weights, seen = np.array([8.0]), []

        def gradient(weights):  # the gradient of the loss w^2 / 2
            seen.append(weights[0].item())
            return weights.copy()

        if t.rank == 0:
            serve(t, weights, n_steps=3, rate=0.5)
        else:
            work(t, weights, gradient, n_steps=3)
        return seen

    for serve in (serve_together, serve_in_turn):
        server, *workers = simulate(3, example, serve)
        print(serve.__name__, " worker 1 computed at", workers[0], " worker 2 at", workers[1])
