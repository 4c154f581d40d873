"""The convolutional nets of bench_conv.py: the same code for minidl and for PyTorch.

Both libraries have the same names, so a net is a function that takes the library:

    net = NETS["mnist cnn"]
    model, x, y = net.make(minidl), *net.batch()       or net.make(torch)
    step = step_of(minidl, model, x, y)                step() trains once and returns the loss

Test: tests/benchmarks/test_conv_nets.py
"""

from typing import Callable, NamedTuple

import numpy as np


class Net(NamedTuple):
    """A net of the benchmark. make(library) returns the model. The other fields are the shape of
    the input and the number of classes. If the number of classes is None, the model learns images
    of the shape `target`."""

    make: Callable
    shape: tuple
    n_classes: int | None = None
    target: tuple | None = None

    def batch(self):
        """Returns (x, y): random images, and labels or images to learn."""
        rng = np.random.default_rng(0)
        x = rng.standard_normal(self.shape).astype(np.float32)
        if self.n_classes:
            return x, rng.integers(0, self.n_classes, self.shape[0])
        return x, rng.standard_normal(self.target).astype(np.float32)


def step_of(lib, model, x, y):
    """Returns a function that does forward, backward and a step of SGD with momentum, and returns
    the loss."""
    F = lib.nn.functional
    loss_of = F.cross_entropy if y.ndim == 1 else F.mse_loss
    optimizer = lib.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    x, y = lib.tensor(x), lib.tensor(y)

    def step():
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def mnist_cnn(lib):
    nn = lib.nn
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(),
        nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 12 * 12, 128), nn.ReLU(), nn.Linear(128, 10))


def tiny(lib):
    nn = lib.nn
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2),
        nn.ConvTranspose2d(2, 2, 2, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(2, 2))


def conv_bn_relu(lib):
    nn = lib.nn

    def stage(n_in, n_out):
        return nn.Conv2d(n_in, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()

    return nn.Sequential(*stage(3, 32), *stage(32, 64), *stage(64, 128),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def separable(lib):
    nn = lib.nn
    return nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.ReLU(),
                         nn.Conv2d(16, 16, 1))


def resnet18(lib):
    """Returns a ResNet-18 for images of 32 x 32. The first layer is 3 x 3, with stride 1.

    Source: He et al., "Deep residual learning", 2015."""
    nn, F = lib.nn, lib.nn.functional

    class Block(nn.Module):
        def __init__(self, n_in, n_out, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
            self.norm1 = nn.BatchNorm2d(n_out)
            self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
            self.norm2 = nn.BatchNorm2d(n_out)
            self.short = None
            if stride != 1 or n_in != n_out:
                self.short = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False),
                                           nn.BatchNorm2d(n_out))

        def forward(self, x):
            y = F.relu(self.norm1(self.conv1(x)))
            y = self.norm2(self.conv2(y))
            return F.relu(y + (x if self.short is None else self.short(x)))

    layers = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    n_in = 64
    for n_out, stride in (64, 1), (128, 2), (256, 2), (512, 2):
        layers += Block(n_in, n_out, stride), Block(n_out, n_out, 1)
        n_in = n_out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def unet(lib):
    """Returns a U-Net that makes the images smaller twice, and then larger twice. While
    the images become larger, each level also gets the earlier result that has the same size.

    Source: Ronneberger et al., "U-Net", 2015."""
    nn = lib.nn

    def pair(n_in, n_out):
        return nn.Sequential(nn.Conv2d(n_in, n_out, 3, padding=1), nn.ReLU(),
                             nn.Conv2d(n_out, n_out, 3, padding=1), nn.ReLU())

    class UNet(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.down1, self.down2, self.middle = pair(3, n), pair(n, 2 * n), pair(2 * n, 4 * n)
            self.pool = nn.MaxPool2d(2)
            self.grow2 = nn.ConvTranspose2d(4 * n, 2 * n, 2, stride=2)
            self.up2 = pair(4 * n, 2 * n)
            self.grow1 = nn.ConvTranspose2d(2 * n, n, 2, stride=2)
            self.up1 = pair(2 * n, n)
            self.head = nn.Conv2d(n, 1, 1)

        def forward(self, x):
            a = self.down1(x)
            b = self.down2(self.pool(a))
            y = self.grow2(self.middle(self.pool(b)))
            y = self.up2(lib.cat([b, y], dim=1))
            y = self.up1(lib.cat([a, self.grow1(y)], dim=1))
            return self.head(y)

    return UNet(64)


NETS = {
    "mnist cnn": Net(mnist_cnn, (64, 1, 28, 28), 10),
    "conv, batch norm, relu": Net(conv_bn_relu, (32, 3, 32, 32), 10),
    "depthwise and pointwise": Net(separable, (16, 16, 32, 32), target=(16, 16, 32, 32)),
    "ResNet-18": Net(resnet18, (16, 3, 32, 32), 10),
    "U-Net": Net(unet, (4, 3, 64, 64), target=(4, 1, 64, 64)),
}

# TINY has all kinds of layers, so that a step loads everything that a library loads on first use.
TINY = Net(tiny, (2, 1, 8, 8), 2)

# Each layer is a 3 x 3 convolution with padding 1. The dict has {number of channels of the input
# and of the output: shape of the input}.
LAYERS = {64: (16, 64, 32, 32), 128: (32, 128, 16, 16), 256: (32, 256, 8, 8)}


def operations(lib, model, x):
    """Returns (operations of forward, operations of backward). A multiply-add of a convolution or
    a linear layer counts as two operations. Backward needs this number of operations for the
    gradient of the weights, and again for the gradient of the input. Only the layer that reads x
    needs no gradient of its input. Products with the zeros of a padding do not count, because they
    change no result, and oneDNN leaves these products out."""
    nn, counted = lib.nn, []

    def count(module, inputs, output):
        x, weight = inputs[0], module.weight
        n = 2 * len(x) * int(np.prod(weight.shape[:2]))
        if isinstance(module, nn.Conv2d):
            for size, places, kernel in zip(x.shape[2:], output.shape[2:], weight.shape[2:]):
                n *= products_inside(size, places, kernel, module.stride, module.padding)
        elif isinstance(module, nn.ConvTranspose2d):  # each input pixel uses the whole window
            n *= int(np.prod(x.shape[2:]) * np.prod(weight.shape[2:]))
        counted.append((n, 2 * n if x.requires_grad else n))

    kinds = nn.Conv2d, nn.ConvTranspose2d, nn.Linear
    hooks = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, kinds)]
    model(x)
    for hook in hooks:
        hook.remove()
    return sum(f for f, _ in counted), sum(b for _, b in counted)


def products_inside(size, places, kernel, stride, padding):
    """Counts the products of a convolution along one side of an image. There is one product for
    each position in the result and each position in the window. Returns the number of products with
    a pixel inside the image. The other products have a pixel in the padding."""
    read = stride * np.arange(places)[:, None] - padding + np.arange(kernel)
    return int(((0 <= read) & (read < size)).sum())
