"""27  Convolution: loops, columns, and the implicit product.   60 minutes, needs: 03, 07, 18

    mpirun -n 4 python tutorials/27_convolution.py      (or: minidl run -n 4 ...)
    python tutorials/27_convolution.py --sim 4          picture: out/27_convolution.png

A window of weights slides over an image. At each position the result is a sum of products. x are N
images with C channels. y are the results, with O channels. A window has kh rows and kw columns:

    y[n, o, r, s] = sum over c, i, j of  w[o, c, i, j] * x[n, c, r + i, s + j]

1. Seven loops are slow. Processors are fastest at products of matrices, and the sum is such a
product. Take a matrix, `columns`. A row k of the matrix stands for one (c, i, j), and a column p
stands for one (n, r, s). The number in this row and column is x[n, c, r + i, s + j]:

    y (O, P) = w (O, K) @ columns (K, P)      K = C kh kw rows,  P = N oh ow pixels of the result

The matrix (im2col) has each pixel of x up to kh kw times. But every number in it is a pixel of x.
So the product can read this pixel from x without the matrix, if it knows the position. This is the
implicit product. Exercise 27a computes the position.

2. The gradient of the loss with respect to w is a product, too. Its sum goes over the pixels:

    gw (O, K) = gy (O, P) @ columns^T (P, K)

P is large and K is small. So take the columns of some pixels at a time, and add up the products
(exercise 27b).

3. On a GPU a block of 8 x 8 threads computes 8 x 8 numbers of y. It goes through the K rows in
steps of 8. In each step the threads fetch 8 x 8 weights and 8 x 8 pixels into shared memory. Each
thread reads 8 of these weights and 8 of these pixels. So each number that comes from memory is used
8 times. Two barriers in each step keep the threads from reading too early and from overwriting too
early (exercise 27c). The picture shows which pixels of x a block reads.

4. A network has few weights in its convolutions, and uses each weight for every pixel. So ranks
that share a batch compute much and send little. Batch norm must exchange numbers, too: its mean is
over the samples of all ranks. With SyncBatchNorm (tutorial 18) the losses are equal to the losses
on one rank.

The plain page: minidl/plain/convolution.py. Papers: LeCun et al. 1998; Chellapilla et al. 2006
(columns); Chetlur et al. 2014, cuDNN (arXiv 1410.0759; the implicit product).
Exercises: `minidl exercise 27` writes work/27_convolution.py, `minidl check 27` grades it.
"""

import tempfile
import tracemalloc
from pathlib import Path

import numpy as np

import minidl
from minidl import cuda, nn, optim
from minidl.comm import ring
from minidl.course.out import BLUE, GREY, ORANGE, RED
from minidl.course.tutorial import (
    Table, WrongOption, host, launch, per_rank, picture, progress, put, say,
)
from minidl.data import datasets
from minidl.nn import functional as F
from minidl.parallel import DataParallel
from minidl.plain import convolution as plain

TILE = 8  # threads along a side of a block
FASHION = Path("/usr/share/datasets/fashion-mnist")


def indices(k, p, kh, kw, oh, ow):
    """Returns ((c, i, j) of row k of the columns, (n, r, s) of column p)."""
    # >>> exercise 27a: where a number of the columns comes from
    # Row k stands for a channel c and a position (i, j) in the window. w[o] has the shape
    # (C, kh, kw), and k is the index of an element in w[o].ravel(). Column p stands for an image n
    # and a position (r, s) in the result. p is an index in the same way, for an array of the shape
    # (N, oh, ow). Compute with // and %, because k and p may be arrays.
    return (k // (kh * kw), k // kw % kh, k % kw), (p // (oh * ow), p // ow % oh, p % ow)
    # <<<


def offsets(x_shape, kh, kw):
    """Returns (of_tap, of_pixel), two arrays. Their sums are indices of x.ravel().

    x.ravel()[of_tap[k] + of_pixel[p]] is the number in row k, column p of the columns. A tap is a
    weight of the window, in one channel."""
    n, c, h, width = x_shape
    oh, ow = h - kh + 1, width - kw + 1
    of_tap, of_pixel = np.arange(c * kh * kw), np.arange(n * oh * ow)
    (channel, i, j), (image, r, s) = indices(of_tap, of_pixel, kh, kw, oh, ow)
    # The index of x[image, channel, r + i, s + j] in x.ravel() is the sum of two numbers. The first
    # number depends on k, and the second number depends on p.
    return (channel * h + i) * width + j, (image * c * h + r) * width + s


def weight_gradient(x, gy, kh, kw, step=64):
    """Returns gw (O, C, kh, kw) from x (N, C, H, W) and gy (N, O, oh, ow).

    It holds the columns of at most `step` pixels at a time."""
    # >>> exercise 27b: the gradient of the weight, a product over pixels
    # gw[o, k] = sum over p of gy[o, p] * x.ravel()[of_tap[k] + of_pixel[p]]. The first axis of gy
    # is the image: move the axis of channels to the front, then reshape gy to (O, P). Take `step`
    # pixels p at a time. The last time there may be fewer. Read the columns of these pixels,
    # (K, step), from x.ravel() with one array of indices. Multiply gy at these pixels by the
    # transposed columns, and add the product to gw.
    n_out = gy.shape[1]
    of_tap, of_pixel = offsets(x.shape, kh, kw)
    gy = gy.transpose(1, 0, 2, 3).reshape(n_out, -1)
    gw = np.zeros((n_out, len(of_tap)), x.dtype)
    for p in range(0, len(of_pixel), step):
        columns = x.ravel()[of_tap[:, None] + of_pixel[p : p + step]]
        gw += gy[:, p : p + step] @ columns.T
    return gw.reshape(n_out, x.shape[1], kh, kw)
    # <<<


KERNEL = """
// Computes y (N, O, places) from x and w (O, n_taps). A thread computes one number of y. A block
// computes 8 output channels of 8 pixels. x[of_tap[k] + of_pixel[p]] is row k, column p of the
// columns.
#define TILE 8
extern "C" __global__ void convolve(float* y, const float* x, const float* w, const int* of_tap,
                                    const int* of_pixel, int n_out, int n_taps, int n_pixels,
                                    int places) {
  __shared__ float ws[TILE][TILE], xs[TILE][TILE];
  const int u = threadIdx.x, v = threadIdx.y;
  const int o = blockIdx.y * TILE + v, p = blockIdx.x * TILE + u;
  float sum = 0;
  for (int k0 = 0; k0 < n_taps; k0 += TILE) {
    // >>> exercise 27c: a step of the tiled product
    // Thread (u, v) fetches one number of each tile. ws[v][u] is the weight of output channel o and
    // row k0 + u. xs[v][u] is the number in row k0 + v, column p. If o, p or the row is too large,
    // store 0. Then each thread adds 8 products to its sum: row v of ws times column u of xs. Other
    // threads have fetched most of these numbers. So call __syncthreads() before the threads read
    // the tiles, and again after that, before the next step overwrites the tiles.
    ws[v][u] = o < n_out && k0 + u < n_taps ? w[o * n_taps + k0 + u] : 0;
    xs[v][u] = k0 + v < n_taps && p < n_pixels ? x[of_tap[k0 + v] + of_pixel[p]] : 0;
    __syncthreads();
    for (int l = 0; l < TILE; ++l) sum += ws[v][l] * xs[l][u];
    __syncthreads();
    // <<<
  }
  // pixel p is at position p % places of image p / places
  if (o < n_out && p < n_pixels) y[(p / places * n_out + o) * places + p % places] = sum;
}
"""


def source(folder, text=KERNEL):
    """Writes the kernel into a file in `folder`. Returns the path of the file.

    The file begins with empty lines, so that a line has the same number in messages as in this
    script.
    """
    script = Path(__file__)
    before, _, _ = script.read_text(encoding="utf-8").partition(KERNEL)
    path = Path(folder, script.name)
    path.write_text("\n" * before.count("\n") + text, encoding="utf-8")
    return path


def launch_of(x, w):
    """Returns (grid, block, arguments) of the kernel for float32 x and w. arguments[0] is y."""
    n_out, c, kh, kw = w.shape
    oh, ow = plain.places(x, w)
    of_tap, of_pixel = (a.astype(np.int32) for a in offsets(x.shape, kh, kw))
    y = np.empty((len(x), n_out, oh, ow), np.float32)
    grid = -(-len(of_pixel) // TILE), -(-n_out // TILE)
    return grid, (TILE, TILE), (y, x, w, of_tap, of_pixel, n_out, len(of_tap), len(of_pixel),
                                oh * ow)


def problem(args, n, side):
    """Returns (x, w), float32. x: n images of side x side pixels. w: windows of 3 x 3.

    The images and the results have --channels channels."""
    draw = minidl.Generator(27)
    c = args.channels
    return draw.normal(n, c, side, side), draw.normal(c, c, 3, 3)


def held(form, x, w):
    """Returns (y, the largest number of bytes that form(x, w) held at one time, without y).

    Another thread of this process may allocate memory at the same time. So form runs three times,
    and the smallest number counts."""
    found = []
    for _ in range(3):
        tracemalloc.start()
        y = form(x, w)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        found.append(most - y.nbytes)
    return y, min(found)


def forms(t, table, x, w):
    """Part 1: compares the results of three forms of the convolution, and the bytes that they hold.

    Returns {form: bytes}."""
    found = {}
    small = x[:1, :2], w[:2, :2]
    wanted = plain.by_loops(*small)
    ours = plain.implicit(*small)
    table.row("implicit: difference from loops", np.abs(ours - wanted).max(), 0.0, "abs<1e-12")

    # The arrays are float64, as in the plain page. Python's own objects add some kB.
    y, found["columns"] = held(plain.by_columns, x, w)
    n_pixels = y[:, 0].size
    n_taps = w[0].size
    table.row("bytes held by columns: kh kw times the input", found["columns"],
              8 * n_taps * n_pixels, "rel<0.02")
    same, found["implicit, NumPy"] = held(plain.implicit, x, w)
    # For each pixel of y, the function `implicit` holds C numbers of a shifted image, and O numbers
    # of the product of this image and (O, C) weights.
    table.row("bytes held by NumPy's implicit product", found["implicit, NumPy"],
              8 * (w.shape[1] + w.shape[0]) * n_pixels, "rel<0.02")
    table.row("implicit: difference from columns", np.abs(same - y).max(), 0.0, "abs<1e-12")
    return found


def by_weight(table, x, w):
    """Part 2: compares weight_gradient() with the plain page."""
    gy = minidl.Generator(28).normal(len(x), len(w), *plain.places(x, w)).astype(float)
    _, wanted = plain.gradients(gy, x, w)
    found = weight_gradient(x, gy, *w.shape[2:])
    table.row("27b: gw, difference from the plain page's", np.abs(found - wanted).max(), 0.0,
              "abs<1e-10")


def without(barrier, x, w):
    """Checks the kernel without one of its barriers, 0 or 1. Returns the Report of the check."""
    parts = KERNEL.partition("float sum")
    words = parts[2].split("__syncthreads();")
    words[barrier] += "//"  # makes this barrier a comment
    with tempfile.TemporaryDirectory() as folder:
        path = source(folder, "".join(parts[:2]) + "__syncthreads();".join(words))
        return cuda.check(path, *launch_of(x, w), name="convolve", outputs=["y"])


def tiles(t, args, table, x, w):
    """Part 3: checks the kernel's values, loads and barriers. Returns the bytes of its two tiles in
    shared memory.
    """
    grid, block, arguments = launch_of(x, w)
    with tempfile.TemporaryDirectory() as folder:
        report = cuda.check(source(folder), grid, block, arguments, name="convolve", outputs=["y"])
        say(t, *(f"   {error}" for error in report.errors))
        table.row("27c: errors", len(report.errors), 0, "exact")
        wanted = plain.by_columns(x.astype(float), w.astype(float))
        # The bound is for float32 numbers that are sums of K products.
        error = np.abs(arguments[0] - wanted).max()
        table.row("27c: y, difference from columns", error, 0.0, "abs<1e-4")
        if args.device == "cuda":  # cuda.check ran on the CPU; now the kernel runs on the GPU
            arrays = [put(args, a) if isinstance(a, np.ndarray) else a for a in arguments]
            cuda.kernel(source(folder), "convolve")(grid, block, arrays)
            error = np.abs(host(arrays[0]) - wanted).max()
            table.row("27c on the GPU: y, difference from columns", error, 0.0, "abs<1e-4")

    y, n_taps = arguments[0], w[0].size
    n_pixels = y[:, 0].size
    n_rows = -(-len(w) // TILE)  # the number of blocks that need the same pixels
    loads = report.ledger["x"].loads
    table.row("loads of x: K P ceil(O / 8)", loads, n_taps * n_pixels * n_rows, "exact")
    loads = report.ledger["w"].loads
    theory = w.size * -(-n_pixels // TILE)
    table.row("loads of w: K O ceil(P / 8)", loads, theory, "exact")
    table.row("loads of x without tiles, and of w", n_taps * y.size)
    table.row("bytes of x, w, y: at least these must move", x.nbytes + w.nbytes + y.nbytes)

    say(t, "   the kernel without one of its barriers:")
    for number, which in enumerate(("first", "second")):
        small = x[:1, :2, :5, :5], w[:3, :2]
        report = without(number, *map(np.ascontiguousarray, small))
        kinds = {error.kind for error in report.errors}
        say(t, f"   without the {which}: {report.errors[0]}" if kinds else "   nothing found")
        table.row(f"no {which} barrier: data race", "data race" in kinds, True, "exact")
    return 2 * 4 * TILE * TILE


class Net(nn.Module):
    """Two 3 x 3 convolutions, each with batch norm, relu and pooling, and a linear layer."""

    def __init__(self, side, norm):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.norm1 = norm(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1, bias=False)
        self.norm2 = norm(16)
        self.linear = nn.Linear(16 * (side // 4) ** 2, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        return self.linear(x.flatten(1))


def data(args):
    """Returns (train, test) of the digits, or of Fashion-MNIST with --fashion."""
    if not args.fashion:
        return datasets.digits()
    try:
        return datasets.idx_folder(FASHION)
    except FileNotFoundError:
        raise WrongOption(f"--fashion: the folder {FASHION} is missing. Install it (sudo "
                          "apt install dataset-fashion-mnist), or leave the option out") from None


def train(t, args, images, labels, norm, wrap, mine):
    """Trains for --steps steps. Returns (network, the losses as an array).

    norm(channels) makes a layer of batch norm. wrap(network) returns the network to call. mine:
    this rank's part of each batch, a slice."""
    minidl.manual_seed(0)  # the same weights on all ranks
    net = put(args, Net(images.shape[-1], norm))
    model = wrap(net)
    optimizer = optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
    draw = np.random.default_rng(0)  # the same batches on all ranks
    losses = []
    for _ in progress(t, range(args.steps), "training"):
        rows = draw.integers(0, len(images), args.batch)[mine]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(put(args, images[rows])), put(args, labels[rows]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return net, np.array(losses)


def training(t, args, table):
    """Part 4: compares the losses on all ranks with the losses on one rank.

    Returns (losses on all ranks, losses on one rank)."""
    each = per_rank(t, args.batch)
    mine = slice(t.rank * each, (t.rank + 1) * each)
    (images, labels), (test_images, test_labels) = (part[:] for part in data(args))

    def synchronised(n):
        return nn.SyncBatchNorm(n, t=t)

    def parallel(net):
        return DataParallel(net, t, broadcast_buffers=False)

    net, here = train(t, args, images, labels, synchronised, parallel, mine)
    together = ring.all_reduce(t, here.copy()) / t.size
    _, alone = train(t, args, images, labels, nn.BatchNorm2d, lambda net: net, slice(None))
    # The sums are in float32, and have a different order. Training makes the difference larger.
    apart = np.abs(together - alone).max()
    table.row("losses of all ranks: difference from one rank's", apart, 0.0, "abs<1e-3")
    table.row("the last loss, at most the first", together[-1], together[0], "<=")
    # For one image, a weight of a convolution is used once for every pixel of the result. A weight
    # of a linear layer is used only once.
    side = images.shape[-1]
    table.row("products of a weight of the first layer, per image", side**2)

    with minidl.no_grad():
        scores = net.eval()(put(args, test_images))
    right = float((host(scores).argmax(1) == test_labels).mean())
    table.row("share of the test images that are right", right)
    return together, alone


def main(t, args):
    table = Table(t)
    wide = [a.astype(float) for a in problem(args, 4, 20)]
    say(t, "1. Three forms of one convolution, and the bytes that each holds.")
    bytes_held = forms(t, table, *wide)
    say(t, "2. The gradient of the weight, some pixels at a time.")
    by_weight(table, *wide)
    say(t, "3. The implicit product as a kernel, 8 x 8 threads a block.")
    bytes_held["implicit, a block's tiles"] = tiles(t, args, table, *problem(args, 2, 10))
    say(t, f"4. Training on {t.size} rank{'s' * (t.size > 1)}, with batch norm over all ranks.")
    losses = training(t, args, table)
    picture(t, args, draw, bytes_held, losses)
    return table


OPTIONS = {
    "channels": (16, "channels of the images, and of the results"),
    "batch": (48, "number of images in a batch, over all ranks"),
    "steps": (40, "number of training steps"),
    "lr": (0.05, "learning rate"),
    "fashion": (False, "train on Fashion-MNIST, from Debian's package dataset-fashion-mnist"),
}


def draw(plt, bytes_held, losses):
    """Draws the pixels of y that a block computes, and how many times it reads each pixel of x
    (left).

    Right: the bytes held, and the losses."""
    figure, (result, image, bars, curve) = plt.subplots(
        1, 4, figsize=(16, 4.2), width_ratios=(0.8, 1, 1, 1))
    side, window, first = 10, 3, 20
    places = side - window + 1
    made = np.zeros((places, places))
    reads = np.zeros((side, side))  # how many numbers of the block need this pixel
    pixels = np.arange(first, first + TILE)
    _, (_, rows, cols) = indices(0, pixels, window, window, places, places)
    made[rows, cols] = 1
    for r, s in zip(rows, cols, strict=True):
        reads[r : r + window, s : s + window] += 1
    image.imshow(np.where(reads, reads, np.nan), cmap="Blues", vmin=0, vmax=window**2)
    for (r, s), n in np.ndenumerate(reads):
        if n:
            image.text(s, r, int(n), ha="center", va="center", fontsize=9,
                       color="white" if n > 5 else "black")
    image.set_title(f"Pixels of x that the block reads:\n{int(reads.sum())} reads, "
                    f"{(reads > 0).sum()} pixels")
    result.imshow(np.where(made, made, np.nan), cmap="Oranges", vmin=0, vmax=1.6)
    result.set_title(f"{TILE} pixels of y\nthat a block computes")
    for axes, n in ((image, side), (result, places)):
        axes.set_xticks(np.arange(n + 1) - 0.5, [])
        axes.set_yticks(np.arange(n + 1) - 0.5, [])
        axes.grid(color=GREY, linewidth=0.6)
        axes.tick_params(length=0)
        axes.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5))

    shown = bars.barh(list(bytes_held), list(bytes_held.values()), color=[RED, ORANGE, BLUE])
    bars.bar_label(shown, [f"{n:,}" for n in bytes_held.values()], padding=4)
    bars.set(title="Bytes held, without x, w, y", xscale="log",
             xlim=(100, 30 * max(bytes_held.values())))
    bars.invert_yaxis()

    together, alone = losses
    curve.plot(alone, color=GREY, linewidth=5, alpha=0.5, label="one rank")
    curve.plot(together, color=BLUE, linewidth=1.5, label="all ranks, SyncBatchNorm")
    curve.set(title="Loss", xlabel="step")
    curve.legend()
    return figure


if __name__ == "__main__":
    launch(main, OPTIONS, ranks=4)
