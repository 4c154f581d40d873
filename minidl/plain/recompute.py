"""Recompute: keep only the inputs of a segment of layers, and run the segment again in backward.

Backward needs the results of all layers, the activations. So forward keeps them: memory grows with
the number of layers n. Here the layers are cut into k segments, and each segment is ONE operation:

    forward     x ─► [ layer ─► layer ─► layer ] ─► y      keeps only x and y (the next x)
    backward    x ─► [ layer ─► layer ─► layer ] ◄─ gy     runs the layers again from x and keeps
                                                           all results, then goes back through them

    memory      the k inputs of the segments, and during backward the n/k results in one segment:
                k + n/k instead of n. It is smallest for k = sqrt(n), where it is 2 sqrt(n)
    time        one more forward. Backward costs about two forwards, so a step is a third longer

The gradients are exactly the same if the second run of a segment does the same as the first. For
example, dropout must drop the same elements.

Paper: Chen et al., "Training deep nets with sublinear memory cost", 2016.
This page is the plain version. The real one, minidl/memory/recompute.py, adds: the same random
numbers and settings in the second run, parameters that it finds by itself, several outputs,
operations whose results are kept, and gradients that arrive in the same order as without recompute.
"""

from minidl.plain.autograd import Tensor, grad, order


def recompute(segment, *inputs):
    """Returns segment(*inputs), one Tensor. Only `inputs` get gradients, so the weights must be
    inputs, too."""
    def run():
        fresh = [Tensor(x.array) for x in inputs]  # Tensors without parents, where `grad` stops
        return fresh, segment(*fresh)

    # A gradient is a Tensor that has parents, too. Here the gradients lose their parents. Otherwise
    # they would keep the results of all segments alive. So there is no second derivative.
    def rule(g):
        fresh, y = run()
        # `grad` wants a single number. The gradient of sum(y * g) with respect to y is g.
        gradients = grad((y * Tensor(g.array)).sum(), fresh)
        return [Tensor(each.array) for each in gradients]

    array = run()[1].array  # the graph of this first run is freed at once
    return Tensor(array, inputs, rule)


def kept(y):
    """Returns how many results of operations are kept for the backward of y."""
    return sum(1 for node in order(y) if node.parents)  # only results of operations have parents


if __name__ == "__main__":
    runs = 0

    def layer(x, w):
        global runs
        runs += 1
        return x * w

    def three_layers(x, w):
        return layer(layer(layer(x, w), w), w)

    for name in "plain", "recompute":
        runs, x, w = 0, Tensor(1.0), Tensor(2.0)
        y = x
        for _ in range(3):  # 3 * 3 = 9 layers
            y = recompute(three_layers, y, w) if name == "recompute" else three_layers(y, w)
        n_kept = kept(y)
        gx, gw = grad(y, [x, w])
        print(f"{name:9}  y {y.array}  gx {gx.array}  gw {gw.array}  kept {n_kept}  runs {runs}")
