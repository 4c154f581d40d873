"""Pipeline parallelism: each rank has some consecutive layers, a stage of the model.

    micro-batch ──► stage 0 ──activations──► stage 1 ──activations──► stage 2 ──► loss
                          ◄───gradients───         ◄───gradients───

While stage 1 works on a batch, stage 0 would have nothing to do. So the batch is cut into m
micro-batches, and stage 0 begins the second micro-batch while stage 1 works on the first one. A
schedule is the list of the tasks of a stage: F3 is the forward of micro-batch 3, B3 is its
backward. Here are two schedules for 3 stages and m = 4:

    GPipe   stage 0   F0 F1 F2 F3 .  .  .  .  B0 B1 B2 B3     all forwards first: a stage keeps
            stage 1   .  F0 F1 F2 F3 .  .  B0 B1 B2 B3 .      activations of m micro-batches
            stage 2   .  .  F0 F1 F2 F3 B0 B1 B2 B3 .  .

    1F1B    stage 0   F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3     a backward as soon as there is
            stage 1   .  F0 F1 .  B0 F2 B1 F3 B2 .  B3 .      one: a stage keeps activations
            stage 2   .  .  F0 B0 F1 B1 F2 B2 F3 B3 .  .      of at most n micro-batches

Let there be n stages. In both schedules a stage has no work during a share (n-1) / (m + n-1) of the
time. This share is the bubble.

Papers: Huang et al., "GPipe", 2019; Narayanan et al., "Efficient Large-Scale Language Model
Training on GPU Clusters Using Megatron-LM", 2021. This page is the plain version. The real one,
minidl/parallel/model/pipeline.py, adds: several stages on a rank, shapes that the first message
announces, weights that two stages share, recompute, and more schedules.
"""

import numpy as np


def gpipe(stage, n, m):
    """Returns the tasks of a stage, in order: a list such as F0 F1 B0 B1. n: the number of stages.
    m: the number of micro-batches."""
    return [f"F{i}" for i in range(m)] + [f"B{i}" for i in range(m)]


def one_f_one_b(stage, n, m):
    """Returns the tasks of a stage. The stage first runs as many forwards as there are stages after
    it. Then it runs a forward and a backward in turn. At the end only backwards are left."""
    ahead = min(n - stage - 1, m)
    tasks = [f"F{i}" for i in range(ahead)]  # the warm-up has only forwards
    for i in range(m):
        if ahead + i < m:  # in the steady state each backward comes after a forward
            tasks.append(f"F{ahead + i}")
        tasks.append(f"B{i}")  # in the cool-down only backwards are left
    return tasks


def step(t, schedule, forward, micro_batches, shape):
    """Does the tasks of stage t.rank in the order of the schedule. Returns a list of the losses,
    which is empty if this is not the last stage.

    forward(x, i) computes this stage on micro-batch i. It returns y and a function: backward(gy)
    adds to the gradients of this stage's weights, and returns the gradient of x. In the last stage
    y is the loss, because the forward of this stage knows the targets of micro-batch i. `shape`:
    the shape of the activations between stages."""
    first, last = t.rank == 0, t.rank == t.size - 1
    before, after = t.rank - 1, t.rank + 1
    losses, backwards, sends = [], {}, []
    for task in schedule:
        i = int(task[1:])
        if task[0] == "F":
            x = micro_batches[i] if first else t.recv(np.empty(shape), before)
            y, backwards[i] = forward(x, i)
            if last:
                losses.append(y)
            else:
                sends.append(t.isend(y, after))
        else:
            if last:
                # gy is the gradient of the mean of all losses with respect to losses[i].
                gy = np.full_like(losses[i], 1 / len(micro_batches))
            else:
                gy = t.recv(np.empty(shape), after)
            gx = backwards.pop(i)(gy)
            if not first:
                sends.append(t.isend(gx, before))
    for request in sends:
        request.wait()
    return losses


if __name__ == "__main__":
    from minidl.comm import simulate

    def example(t):
        w = t.rank + 2.0  # stage 0 computes y = 2 x, stage 1 y = 3 x, stage 2 y = 4 x
        gradients = []

        def forward(x, i):
            def backward(gy):
                gradients.append((gy * x).item())
                return gy * w
            return x * w, backward

        micro_batches = [np.array([1.0]), np.array([2.0])]
        schedule = one_f_one_b(t.rank, t.size, len(micro_batches))
        losses = step(t, schedule, forward, micro_batches, shape=1)
        print("stage", t.rank, *schedule, " losses", *losses, " gradient", sum(gradients))

    simulate(3, example)
