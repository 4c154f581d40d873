"""Trains a GPT to write Python, data parallel over N ranks.

    minidl run -n 4 tutorials/train_gpt.py          (or mpirun -n 4 python tutorials/train_gpt.py,
                                                     or python tutorials/train_gpt.py --sim 2)
Goal: see how the parts of the framework work together in one script. It runs for half a minute on
two cores. Prerequisites: 01_autograd, 07_ring.

The text is the source code of the package asyncio, from your own Python. The tokenizer cuts the
text into tokens of a few bytes (data/byte_pairs.py). The model reads `context` tokens and predicts
the next token. The loss is the mean of -log p(next token). Before training it is about log2 V bits,
with V kinds of tokens. Divide the loss in bits by the mean number of bytes of a token. The result
is the number of bits to which the model can compress a byte of the text. The model never trains on
the validation text. It reads the training text several times and learns parts of it by heart. So
the training loss is lower than the validation loss, as the picture shows. With more text the two
losses are closer.

Each of N ranks has the whole model and its own part of the batch. During backward the gradients are
sent in buckets, and a ring all-reduce sums them. If the gradients have K bytes, each rank sends
2(N-1)/N K bytes. The weights of all ranks have the same bits. The N ranks together compute the step
that one rank computes with the whole batch.

    --zero 1, 2 or 3    1 divides the optimizer's state over the ranks, 2 also divides the
                        gradients, and 3 also divides the weights (11_zero)
    --amp O1, O2, O3    mixed precision (05_amp)
    --recompute K       cuts the blocks into K segments. Of a segment only the inputs are stored;
                        backward computes the rest again (06_memory)
    --offload 1         keeps the optimizer's state in host memory, and updates it there
                        (12_offload)
    --pp 2 --tp 2       cuts the layers into 2 stages, and each matrix into 2 parts (15_hybrid_3d)
    --save DIR          saves a snapshot every 100 steps (--every) and at the end
    --resume DIR        continues from the last snapshot, --resume DIR@STEP from the snapshot of
                        step STEP. The weights get the same bits as without a break
    --text email        reads the package email; --text . reads Python's whole standard library

Sources: Radford et al. 2019 (GPT-2); Li et al. 2020 (arXiv 2006.15704).
"""

import hashlib
import math
import sysconfig
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import numpy as np

import minidl
from minidl import comm, memory, nn, optim, snapshot
from minidl.comm import Grid, average, objects
from minidl.course.out import GREY, LINES, ORANGE, line_at
from minidl.course.training import TECHNIQUES, check, first_step
from minidl.course.tutorial import Table, WrongOption, host, launch, picture, progress, put, say
from minidl.data import Tokenizer, text
from minidl.memory.predict import predict
from minidl.nn import functional as F
from minidl.optim import lr_scheduler
from minidl.parallel import DataParallel, Offload, Zero1, Zero2, Zero3
from minidl.parallel.model.grid_gpt import GridGPT
from minidl.parallel.model.tensor import whole
from minidl.precision import amp

OPTIONS = {
    "steps": (370, "training steps"),
    "batch": (64, "number of windows in a step, over all ranks together"),
    "context": (32, "number of tokens in a window"),
    "vocabulary": (1024, "number of kinds of tokens: 256 bytes, and frequent pairs of tokens"),
    "layers": (2, "number of transformer blocks"),
    "heads": (4, "number of attention heads"),
    "width": (96, "numbers in the vector of a token"),
    "lr": (1e-2, "largest learning rate"),
    "seed": (0, "seed of weights and batches"),
    "sample": (96, "tokens of each method that the model writes at the end"),
    "text": ("asyncio", "a package of Python's standard library, or the path of a folder from /"),
} | TECHNIQUES


def main(t, args):
    check(t, args)
    start = first_step(args)
    t = comm.Ledger(t)
    table = Table(t)
    data, valid, tokenizer = read(t, args)
    error = largest_difference(on_ranks(t, args, exact=True), args, data)
    ours = on_ranks(t, args)
    say(t, f"rank 0 of {t.size} has {ours.n_params:,} parameters; {len(data):,} tokens of text, "
           f"{ours.dp.size} replicas x {args.batch // ours.dp.size} windows of {args.context}")
    if args.device == "cuda":
        say(t, f"transport of gradients: {ours.wrapped[0].way}")

    run = {"model": ours.parallel, "losses": []} | recipe(args, ours.trained())
    optimizer, losses = run["optimizer"], run["losses"]
    if start:
        folder, _ = snapshot.at_step(args.resume)
        snapshot.load(folder, t, step=start, **run)
    sent, seconds = train(t, args, ours, run, start, data)

    held = memory.totals(ours.modules, optimizer)
    say(t, f"\n{memory.report(ours.modules, optimizer, ours.wrapped)}\n\n{t.report()}")
    valid_loss = evaluate(args, ours, valid)
    sample = write(t, args, ours.whole_state(), tokenizer)
    say(t, f"\n--- five methods that the model writes ---\n{sample}\n---")

    tokens_per_byte = len(valid) / len(tokenizer.decode_bytes(valid))
    table.row("validation loss, bits per byte", valid_loss / math.log(2) * tokens_per_byte)
    table.row("loss before training, bits per token", losses[0] / math.log(2),
              math.log2(args.vocabulary), "rel<0.1")
    table.row("gradient, n ranks against one: difference", error, 0.0, "abs<1e-9")

    formula = ours.bytes_sent(args.batch // ours.dp.size * args.context)
    for axis, n_bytes in formula.items():
        where = f"along {axis}" if len(formula) > 1 else "by this rank"
        table.row(f"bytes sent in a step, {where}", sent[axis], n_bytes, "exact")
    differing = sum(n_different(group, arrays) for group, arrays in ours.copies())
    table.row("ranks whose weights differ", differing, 0, "exact")

    if args.offload:
        table.row("bytes of state, device memory", sum(memory.totals(ours.modules).values()))
        table.row("bytes of state, host memory", optimizer.memory()["host"])
    else:
        theory = predict(ours.n_params, precision=args.amp, zero=args.zero, world=ours.dp.size)
        of_states = sum(held[kind] for kind in memory.STATES)
        # The formula is not exact, because each flat array is padded. The padding is less than one
        # parameter on each rank.
        table.row("bytes of state held by this rank", of_states, theory["total"], "rel<0.01")

    n_tokens = args.batch * args.context * (args.steps - start)
    table.row("tokens per second, all ranks", int(n_tokens / seconds))
    n_passes = args.batch * args.context * args.steps / len(data)
    picture(t, args, draw, args.vocabulary, losses, valid_loss, sample, n_passes)
    ours.parallel.close()
    return table


def read(t, args):
    """Returns (tokens for training, tokens for validation, the tokenizer).

    Rank 0 reads the text and sends the tokens to all ranks, because another machine may have
    another version of Python."""
    folder = Path(sysconfig.get_path("stdlib"), args.text)
    if args.vocabulary < 256 or not folder.is_dir():
        raise WrongOption("--vocabulary must be at least 256, because each of the 256 bytes is a "
                          "token. --text must be the name of a folder that exists; got "
                          f"--vocabulary {args.vocabulary} and the folder {folder}")
    tokens = None
    if t.rank == 0:
        train, valid = [part.tobytes().decode("utf-8", "replace")
                        for part in text.split(text.stdlib_corpus(4 << 20, folder))]
        tokenizer = Tokenizer.learn(train[:1 << 20], args.vocabulary)
        data, valid = [np.array(tokenizer.encode(part), np.int32) for part in (train, valid)]
        tokens = data, valid, tokenizer
    return objects.broadcast(t, tokens)


def gpt(args):
    """Returns the model, the same on all ranks.

    Usually the embedding and the output layer share one weight (tied). With ZeRO in several
    pipeline stages they do not, because ZeRO cannot sum the gradients of two stages."""
    minidl.manual_seed(args.seed)
    tied = not (args.zero and args.pp > 1)
    model = nn.GPT(args.vocabulary, args.context, args.layers, args.heads, args.width,
                   tied=tied, init_std=0.08, recompute=args.recompute)
    return put(args, model)


def on_ranks(t, args, exact=False):
    """If --pp or --tp is more than 1, returns a GridGPT, which has this rank's part of a GPT.
    Otherwise returns a Replica, which has a whole GPT.

    exact: if True, the GPT is in float64, without mixed precision and ZeRO, to compare gradients.
    """
    model = gpt(args)
    level, zero = args.amp, args.zero
    if exact:
        model = model.double()
        level, zero = "O0", 0
    if args.pp * args.tp == 1:
        return Replica(t, model, level, zero)
    axes = Grid(t, dp=t.size // (args.pp * args.tp), pp=args.pp, tp=args.tp)
    return GridGPT(model, axes, args.micro or args.pp, level, amp.prepare, zero=zero,
                  recompute=args.recompute == 1)


class Replica:
    """A GPT with data parallelism (zero=0), or with ZeRO (zero=1, 2 or 3).

    GridGPT has the same methods for a model that is divided into stages or matrix parts."""

    def __init__(self, t, model, level, zero):
        amp.prepare(model, level)
        wrap = (DataParallel, Zero1, Zero2, Zero3)[zero]
        self.parallel = wrap(model, t)
        self.dp = t
        self.modules = model
        self.wrapped = [self.parallel]
        self.zero = zero
        self.n_params = sum(p.numel() for p in model.parameters())
        self.named_parameters = model.named_parameters

    def trained(self):
        return self.parallel.shards() if self.zero else self.modules.parameters()

    def step(self, x, y, scaler=None):
        loss = loss_of(self.parallel(x), y)
        if loss.requires_grad:
            (loss if scaler is None else scaler.scale(loss)).backward()
        return loss

    def everywhere(self, loss):
        return loss.item()

    def sent(self):
        return Counter(dp=self.dp.bytes_sent)

    def bytes_sent(self, n_tokens):
        return {"dp": self.parallel.bytes_sent()}

    def whole_state(self):
        with self.parallel.gathered() if self.zero else nullcontext():
            return {name: host(x).copy() for name, x in self.modules.state_dict().items()}

    def copies(self):
        return [(self.dp, self.whole_state().values())]


def loss_of(logits, y):
    """Returns the mean cross entropy over all positions, a 0-d Tensor. logits: (B, T, V), y: (B, T)
    """
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))


def recipe(args, trained):
    """Returns {"optimizer": ..., "scaler": ..., "scheduler": ...} to train `trained`.

    trained: the parameters, or with ZeRO this rank's shards."""
    optimizer = optim.AdamW(trained, lr=args.lr, betas=(0.9, 0.99), weight_decay=0.3)
    if args.offload:
        optimizer = Offload(optimizer)  # Offload also makes master weights
    elif args.amp == "O2":
        optim.use_master_weights(optimizer)
    scaler = amp.GradScaler(enabled=args.amp in ("O1", "O2"))
    def rate(step):
        """Returns the factor of lr. It rises linearly for about a tenth of the steps, then falls
        along a cosine."""
        up = (step + 1) / (args.steps / 10)
        down = (1 + math.cos(math.pi * step / args.steps)) / 2
        return min(up, down)

    scheduler = lr_scheduler.LambdaLR(optimizer, rate)
    return {"optimizer": optimizer, "scaler": scaler, "scheduler": scheduler}


def train(t, args, ours, run, start, data):
    """Does the steps start + 1 to args.steps, and saves snapshots.

    Returns (sent, seconds of all steps). sent: {axis of the grid: the bytes that this rank sent
    along this axis in the last step}."""
    parallel, losses, optimizer, scaler, scheduler = run.values()
    batches = batches_of(ours.dp, data, args, start)
    bar = progress(t, range(start + 1, args.steps + 1), "training")
    start_s = time.perf_counter()
    for step in bar:
        x, y = next(batches)
        x = put(args, x)
        y = put(args, y)
        optimizer.zero_grad()
        before = ours.sent()
        loss = ours.step(x, y, scaler)  # forward and backward
        sent = ours.sent() - before
        if scaler.step(optimizer, max_norm=1.0):
            scheduler.step()
        scaler.update()
        if args.zero:
            before = ours.sent()
            parallel.gather()
            sent += ours.sent() - before

        loss = np.array([ours.everywhere(loss)])
        losses += average.mean(ours.dp, loss).tolist()
        if t.rank == 0:
            bar.set_postfix_str(f"loss {np.mean(losses[-20:]):.3f}")
        if args.save and (step % args.every == 0 or step == args.steps):
            snapshot.save(args.save, step, t, **run)
    return sent, time.perf_counter() - start_s


def batches_of(t, data, args, first=0):
    return text.random_batches(data, args.batch // t.size, args.context, t.rank, t.size, args.seed,
                               first)


def evaluate(args, ours, valid, n_windows=256):
    """Returns the mean loss over at least n_windows windows of the validation text.

    Each replica of the model gets the same number of windows."""
    n = 16 * (args.micro or args.pp)  # number of windows that a replica gets at one time
    n_steps = -(-n_windows // (n * ours.dp.size))
    x, y = text.spread(valid, args.context, n_steps * n * ours.dp.size)
    mine = slice(ours.dp.rank, None, ours.dp.size)
    x = put(args, x[mine])
    y = put(args, y[mine])
    losses = []
    with minidl.no_grad():
        for i in range(0, n_steps * n, n):
            loss = ours.step(x[i:i + n], y[i:i + n])
            losses.append(ours.everywhere(loss))
    mean = np.array([np.mean(losses)])
    return float(average.mean(ours.dp, mean)[0])


def largest_difference(ours, args, data):
    """Returns the largest relative difference between two gradients.

    One is the average of the ranks' gradients. The other is the gradient of one model on the
    windows of all ranks."""
    x, y = next(batches_of(ours.dp, data, args))
    ours.step(put(args, x), put(args, y))
    averaged = {name: whole(p, p.grad) for name, p in ours.named_parameters()}
    ours.parallel.close()

    alone = gpt(args).double()
    x, y = next(text.random_batches(data, args.batch, args.context, seed=args.seed))
    loss_of(alone(put(args, x)), put(args, y)).backward()
    wanted = {name: alone.get_parameter(name).grad.array for name in averaged}
    return max(float(abs(g - wanted[name]).max() / abs(wanted[name]).max())
               for name, g in averaged.items())


def n_different(t, arrays):
    """Returns how many ranks have arrays that differ from this rank's arrays in at least one bit.
    """
    mine = hashlib.sha256(b"".join(host(x).tobytes() for x in arrays)).digest()
    return sum(other != mine for other in objects.all_gather(t, mine))


def write(t, args, state, tokenizer):
    """On rank 0, returns a text of five methods that the model writes. A method ends before the
    next 'def'. On other ranks returns an empty text."""
    if t.rank > 0:
        return ""
    model = gpt(args)
    model.load_state_dict(state)
    start = "\n\n    def"  # no space at the end, because it belongs to the next word's token
    prompt = np.array(tokenizer.encode(start))
    ids = model.generate(put(args, np.stack([prompt] * 5)), args.sample, temperature=0.4,
                         generator=minidl.Generator(args.seed, 1))
    written = [tokenizer.decode(row) for row in host(ids)]
    # Each method loses its last line, because this line can be cut or belong to the next method.
    methods = [part.removeprefix(start).split("def ")[0] for part in written]
    return "\n\n".join(f"    def{part}".rpartition("\n")[0].rstrip() for part in methods)


def draw(plt, vocabulary, losses, valid_loss, sample, n_passes):
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5.5))
    losses, valid_loss = np.asarray(losses) / math.log(2), valid_loss / math.log(2)  # bits
    left.plot(range(1, len(losses) + 1), losses, color=LINES[0], lw=1, label="training")
    left.plot(len(losses), valid_loss, "o", color=ORANGE,
              label=f"validation, unseen text: {valid_loss:.2f}")
    line_at(left, f"knows nothing: log2 {vocabulary} bits", y=math.log2(vocabulary), color=GREY)
    left.set(xlabel="step", ylabel="loss (bits per token)", ylim=(0, None),
             title=f"A GPT reads Python, {n_passes:.1f} times")
    left.legend(loc="lower left")
    right.set_title("and writes", loc="left")
    right.axis("off")
    lines = "\n".join(line[:60] for line in sample.splitlines()[:24]).replace("$", r"\$")
    right.text(0, 1, lines, family="monospace", fontsize=12, va="top", transform=right.transAxes)
    return figure


if __name__ == "__main__":
    launch(main, OPTIONS, ranks=4)
