"""Offload: the host keeps the optimizer's data, and does the optimizer's work.

    device   weights (float16) ── forward, backward ──► gradients (float16)
                 ▲                                          │
                 │ up                                       │ down
                 │                                          ▼
    host     new weights ◄──── Adam ◄──────────────── gradients
                               master weights, m and v (float32)

The device is a GPU, with a small memory; the host is the computer around it. For each weight, Adam
in mixed precision needs 16 bytes: 2 for the weight, 2 for its gradient, and 12 for m, v and a
float32 copy of the weight. The copy is called the master, and keeps small steps (page amp). With
offload the device holds 2 bytes for each weight, and the piece of the gradients that is being
copied. In each step 2 bytes for each weight are copied down, and 2 bytes up.

The weights are cut into pieces, here one for each layer. A gradient is copied down as soon as
backward has made it. Then its memory on the device is free again. The host waits for all gradients,
because only the norm of all gradients tells whether they must be clipped. Then it updates piece
after piece, and copies the new weights of each piece up. Copies can run at the same time as the
computation of other pieces:

    device   | backward 2 | backward 1 | backward 0 |
    down                  | g2         | g1         | g0 |
    host                                                 | u2 | u1 | u0 |
    up                                                        | w2 | w1 | w0 |

On this page everything happens one after the other.

Paper: Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training", 2021. This page is
the plain version. The real one, minidl/parallel/zero/offload.py, adds: a thread for each lane of
the picture, memory that a GPU can read without the processor, pieces of one size, any optimizer,
and updates that run during the next step.
"""

import numpy as np


class Link:
    """Copies arrays between the device and the host. On this page both hold NumPy arrays."""

    def __init__(self):
        self.copies = []  # [("down" or "up", number of bytes)]

    def down(self, array):
        self.copies.append(("down", array.nbytes))
        return array.copy()

    def up(self, array):
        self.copies.append(("up", array.nbytes))
        return array.copy()


def step(link, weights, masters, backward, update):
    """Does one training step, in place. weights: float16 arrays on the device. masters: float32
    copies of the weights on the host.

    backward(weights) yields the gradients of the weights, the last gradient first. update(i, w, g)
    does the optimizer's step on piece i, in place, on the host."""
    gradients = [link.down(g) for g in backward(weights)]
    for i, g in zip(reversed(range(len(weights))), gradients):
        update(i, masters[i], g.astype(np.float32))
        weights[i][...] = link.up(masters[i].astype(np.float16))


if __name__ == "__main__":
    def backward(weights):
        for w in reversed(weights):
            yield np.ones_like(w)

    def update(i, w, g):
        w -= 0.5 * g

    link = Link()
    masters = [np.array([1.0, 2.0, 3.0], np.float32), np.array([4.0], np.float32)]
    weights = [w.astype(np.float16) for w in masters]
    step(link, weights, masters, backward, update)
    print("copies", *link.copies)
    print("weights", *weights)
