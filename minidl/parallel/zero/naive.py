"""ZeRO's three stages in their plainest form: what zero.py and zero3.py do, without overlap.

    stage 1   one bucket of all parameters: scatter the gradients, update one block, gather
    stage 2   a bucket for each parameter, whose gradient is scattered and freed while backward runs
    stage 3   layer after layer: gather its weights, run it, free them

For float32 parameters, and batches of the same size on all ranks. A shard is this rank's block, cut
by `chunks.bounds`, of one or several flattened parameters: a leaf.

Test: tests/parallel/zero/test_naive.py (the real ones have the same bits)
"""

from minidl.comm import chunks, ring_blocks
from minidl.parallel.data import flat
from minidl.parallel.zero.zero3 import free, use
from minidl.tensor import Tensor


def naive_step1(t, params, shard, optimizer, backward):
    """shard: of all parameters; `optimizer` has no other. backward() makes the gradients."""
    backward()
    shard.grad = scatter(t, flat.flatten([p.grad.array for p in params]))
    optimizer.step()  # m and v of one block in n
    weights, _ = ring_blocks.all_gather_v(t, shard.array)
    flat.unflatten(weights, [p.array for p in params])
    for p in params:
        p.grad = None


def naive_step2(t, shards, optimizer, backward):
    """shards: {parameter: its shard}."""

    def scatter_and_free(p):
        shards[p].grad = scatter(t, flat.flatten([p.grad.array]))
        p.grad = None  # while backward runs on: one whole gradient at a time

    removes = [p.on_grad_ready(scatter_and_free) for p in shards]
    backward()
    optimizer.step()
    for p, shard in shards.items():
        flat.unflatten(ring_blocks.all_gather_v(t, shard.array)[0], [p.array])
    for remove in removes:
        remove()


def naive_step3(t, layers, shards, optimizer, x, loss_gradient):
    """shards: {layer: its shard}. x: this rank's batch, an array. loss_gradient: a function of the
    array that the last layer returns."""

    def gather(layer):
        use(list(layer.parameters()), ring_blocks.all_gather_v(t, shards[layer].array)[0])

    kept = []
    for layer in layers:
        gather(layer)
        x = Tensor(x, requires_grad=True)
        y = layer(x)
        free(layer.parameters())
        kept.append((layer, x, y))
        x = y.array
    gy = loss_gradient(x)
    for layer, x, y in reversed(kept):
        gather(layer)
        y.backward(gy)
        grads = [p.grad.array for p in layer.parameters()]
        shards[layer].grad = scatter(t, flat.flatten(grads))
        free(layer.parameters())
        layer.zero_grad()
        gy = x.grad.array
    optimizer.step()


def scatter(t, x):
    """This rank's block of the mean over ranks of the 1-d x, which is workspace."""
    return ring_blocks.reduce_scatter(t, x, chunks.bounds(len(x), t.size)) / t.size
