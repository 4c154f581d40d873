"""Mixed precision: training with half of the bytes works, if two problems are solved.

Forward and backward in float16 are faster, and need half of the memory. But a float16 number has
only 11 significant bits, and a number above 65504 becomes inf (page floats). Two things go wrong:

    a small step is lost       w = 1, lr * g = 0.0002. The float16 nearest to 0.9998 is 1, because
                               the next smaller one is 0.9995. So w never changes
    -> float32 masters         weights are kept and updated in float32. Each step computes with
                               float16 copies of the weights

    a small gradient is lost   2^-26 becomes 0, because the smallest positive float16 is 2^-24
    -> loss scaling            the loss is multiplied by a scale S, so all gradients are S times as
                               large. Before the update they are divided by S, in float32

The larger S is, the fewer small gradients are lost. But if S is too large, large gradients become
inf. So training finds S by trying. If a gradient is inf or nan, this step is skipped, and S is
halved. After `interval` good steps S is doubled.

    float32 master ─ round ─► float16 weight ─ forward, backward of S * loss ─► float16 gradient
          ▲                                                                           │
          └─────────────── w <- w - lr * g ◄───── g = gradient / S in float32 ◄───────┘

Memory of a parameter: 2 bytes for the weight, 2 for its gradient, 4 for the master (page memory).

This method is called level O2, as in NVIDIA's library apex. In level O1 the weights stay in
float32, and each operation has its own type. A matrix product casts its inputs to float16. Softmax
and loss are computed in float32, because an exponential overflows and a long sum loses digits. In
level O1 the gradients need the scale S, too.

Paper: Micikevicius et al., "Mixed precision training", 2018.
This page is the plain version. The real one, minidl/precision/grad_scaler.py and
minidl/optim/master.py, adds: any optimizer; clipping; ranks that skip a step together; bfloat16,
which needs masters but no scale; and a test for inf on the GPU, for which the CPU does not wait.
minidl/precision/amp.py chooses the type of each operation.
"""

import numpy as np


def step(masters, gradients, lr, scale, good_steps, interval):
    """Does one step of gradient descent. Changes masters, a list of float32 arrays, in place.

    gradients(weights, scale) returns float16 arrays: the gradients of scale * loss with respect to
    the float16 weights. Returns the new scale, and the number of good steps since the scale last
    changed. lr: the learning rate. interval: the number of good steps after which the scale is
    doubled."""
    weights = [w.astype(np.float16) for w in masters]
    scaled = gradients(weights, scale)
    if not all(np.isfinite(g).all() for g in scaled):
        return scale / 2, 0
    for w, g in zip(masters, scaled):
        w -= lr * (g.astype(np.float32) / np.float32(scale))
    good_steps += 1
    return (scale * 2, 0) if good_steps == interval else (scale, good_steps)


def loss_o1(w, x, targets):
    """Returns the cross entropy in level O1, a float32. w (features, classes) and x (samples,
    features) are float32. targets: ints (samples,)."""
    scores = x.astype(np.float16) @ w.astype(np.float16)  # the slow product is in float16
    scores = scores.astype(np.float32)  # all other operations are in float32
    scores -= scores.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(scores).sum(axis=1))
    target_scores = scores[np.arange(len(targets)), targets]
    return (log_sum - target_scores).mean()


if __name__ == "__main__":
    lost = np.float16(2.0**-26)
    saved = np.float32(np.float16(2.0**-26 * 2.0**14)) / 2.0**14
    print("2^-26 in float16:", lost, "  with loss scaling:", saved * 2.0**26, "* 2^-26")

    x, w = np.float32([[1, 1]]), np.float32([[1, 0], [0.0001, 0]])  # float16 rounds 1 + 0.0001 to 1
    print("O1: loss", loss_o1(w, x, targets=[0]), " all in float32: log(1 + e^-1.0001) =",
          np.float32(np.log1p(np.exp(-1.0001))))

    def gradients(weights, scale):  # the gradient of scale * loss. The loss is 3 w
        with np.errstate(over="ignore"):  # the result may be inf
            return [np.float32([3 * scale]).astype(np.float16)]

    masters, lr, scale, good_steps = [np.float32([1])], 2.0**-14, 2.0**16, 0
    for _ in range(6):
        print("scale 2 **", int(np.log2(scale)), end=": ")
        scale, good_steps = step(masters, gradients, lr, scale, good_steps, interval=2)
        w = masters[0][0]
        print("w = 1 -", int((1 - w) / lr), "lr, in float16", w.astype(np.float16))
