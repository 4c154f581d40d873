"""Train a GPT to write Python: bytes in, bytes out, data parallel over N ranks.

    minidl run -n 4 tutorials/train_gpt.py          (or mpirun -n 4 python tutorials/train_gpt.py,
                                                     or python tutorials/train_gpt.py --sim 2)
Goal: see every piece of the framework at work in one page. About a minute on two cores.
Prerequisites: 01_autograd, 06_ring.

The text is the Python standard library's own source, on your disk. The model reads `context` bytes
and predicts the next one: loss = -mean log p(next byte), ln 256 = 5.545 before it knows anything.
In bits, loss / ln 2 per byte, that is how far the text could be compressed.

Each rank has the whole model and its own part of the batch. During backward the gradients leave in
buckets, and a ring all-reduce sums them: each rank sends 2(n-1)/n of the gradients' bytes, and the
ranks stay equal to the last bit. So N ranks do what one rank would do with N times the batch.

    --zero 1, 2, 3      the optimizer's state, the gradients, the weights in shares (10_zero)
    --amp O1, O2, O3    mixed precision (04_amp)
    --recompute K       the blocks in K segments that keep only their inputs (05_memory)
    --offload 1         the optimizer's state and its work in host memory (11_offload)
    --pp 2 --tp 2       the layers in 2 stages, each matrix in 2 parts (14_hybrid_3d)
    --save DIR          a snapshot every 100 steps (--every) and at the end
    --resume DIR        goes on from the last one: to the same bits, with the same other options
    --resume DIR@STEP   from an earlier one of the folder

At the end stand the ledgers: what rank 0 held between two steps, and what it sent.

Sources: Radford et al. 2019 (GPT-2); Li et al. 2020 (arXiv 2006.15704).
"""

import math
import time
from contextlib import nullcontext

import numpy as np

import minidl
from minidl import amp, comm, memory, nn, optim, snapshot
from minidl.comm import average, objects, ring, tree
from minidl.comm.grid import Grid
from minidl.course.out import GREY, LINES, ORANGE, line_at
from minidl.data import text
from minidl.memory_predict import predict
from minidl.nn import functional as F
from minidl.optim import lr_scheduler
from minidl.parallel import DataParallel, Offload, Zero1, Zero2, Zero3
from minidl.parallel.model import vocabulary
from minidl.parallel.model.cut import cut
from minidl.parallel.model.parallelize import parallelize, whole_state_dict
from minidl.parallel.model.pipeline import HEADER, Pipeline
from minidl.parallel.model.schedule import one_f_one_b
from minidl.parallel.model.tensor import whole
from minidl.recompute import recompute_sequential
from minidl.tutorial import Table, WrongOption, host, launch, picture, progress, put, say

OPTIONS = {
    "steps": (500, "training steps"),
    "batch": (16, "windows per step, over all ranks together"),
    "context": (64, "bytes the model looks back"),
    "layers": (3, "transformer blocks"),
    "heads": (4, "attention heads"),
    "width": (96, "width of the residual stream"),
    "lr": (3e-3, "peak learning rate"),
    "seed": (0, "of weights and batches"),
    "sample": (500, "bytes to write at the end"),
    "zero": (0, "stage of ZeRO, 0 to 3; 0 is data parallel"),
    "amp": ("O0", "level of mixed precision, O0 to O3"),
    "recompute": (0, "segments of blocks that are run again in backward; 0: none"),
    "offload": (0, "1: the optimizer's state and its work in host memory"),
    "dp": (0, "replicas of the model; 0: ranks / (pp tp)"),
    "pp": (1, "stages of a pipeline, each of some of the layers"),
    "tp": (1, "ranks that divide every matrix"),
    "micro": (0, "micro-batches of each pipeline; 0: as many as stages"),
    "save": ("", "folder for snapshots"),
    "every": (100, "steps between two snapshots"),
    "resume": ("", "folder of the snapshot to go on from, or folder@step"),
}
STAGES = [DataParallel, Zero1, Zero2, Zero3]


class GPT(nn.GPT):
    """nn.GPT, its blocks run again in backward where `segments` is not 0."""

    segments = 0

    def forward(self, ids):
        if not self.segments:
            return super().forward(ids)
        x = self.token(ids) + self.position(self.position.weight._xp.arange(ids.shape[-1]))
        return self.head(self.norm(recompute_sequential(self.blocks, x, self.segments)))


def main(t, args):
    check(t, args)
    t = comm.ledger.Ledger(t)
    table = Table(t)
    data, valid = text.split(corpus(t))
    if args.pp * args.tp > 1:
        return main_on_grid(t, args, table, data, valid)
    minidl.manual_seed(args.seed)
    model = put(args, GPT(256, args.context, args.layers, args.heads, args.width))
    n_params = sum(p.numel() for p in model.parameters())
    say(t, f"GPT with {n_params:,} parameters, {len(data):,} bytes of text, "
           f"{t.size} ranks x {args.batch // t.size} windows of {args.context} bytes")

    same_as_one_rank(t, table, model, data, args)

    model.segments = args.recompute
    amp.prepare(model, args.amp)
    parallel = STAGES[args.zero](model, t)
    if args.device == "cuda":
        say(t, f"gradients travel {parallel.way}")
    trained = parallel.shards() if args.zero else model.parameters()
    optimizer, scaler, scheduler = recipe(args, trained)
    if args.zero:  # a rank sees its shards alone: the ranks skip together, and clip one norm
        scaler.agree, scaler.all_sum = parallel.on_any_rank, parallel.sum_over_ranks
    losses = Losses()
    run = {"model": parallel, "optimizer": optimizer, "scaler": scaler, "scheduler": scheduler,
           "losses": losses}
    folder, step = snapshot.at_step(args.resume)
    start = snapshot.load(folder, t, step=step, **run) if args.resume else 0
    sent, seconds = train(t, args, run, start, data)

    held = memory.totals(model, optimizer)
    counted = f"{memory.report(model, optimizer, [parallel])}\n\n{t.report()}"
    with parallel.gathered() if args.zero else nullcontext():
        valid_loss, accuracy = evaluate(t, args, model, valid)
        sample = write(args, model) if t.rank == 0 else ""
        n_different = differing_ranks(t, model.parameters())
    say(t, f"\n--- {args.sample} bytes it wrote, after a first 'def ' ---\n{sample}\n---\n")
    say(t, counted)

    table.row("loss before training, bits per byte", losses[0] / math.log(2), 8.0, "rel<0.1")
    table.row("validation loss, bits per byte", valid_loss / math.log(2))
    table.row("validation accuracy, next byte", f"{accuracy:.1%}")
    table.row("bytes sent in a step, by this rank", sent, parallel.bytes_sent(), "exact")
    table.row("ranks whose weights differ", n_different, 0, "exact")
    if args.offload:
        table.row("bytes of state, device memory", sum(memory.totals(model).values()))
        table.row("bytes of state, host memory", optimizer.memory()["host"])
    else:
        theory = predict(n_params, precision=args.amp, zero=args.zero, world=t.size)["total"]
        # shares are rounded up by less than a parameter for each flat array
        table.row("bytes of state held by this rank", sum(held[kind] for kind in memory.STATES),
                  theory, "rel<0.01")
    n_bytes = args.batch * args.context * (args.steps - start)
    table.row("bytes of text per second, all ranks", int(n_bytes / seconds))
    picture(t, draw, losses, valid_loss, sample)
    return table


def check(t, args):
    if args.dp or args.micro or args.pp * args.tp != 1:
        check_grid(t, args)
    elif args.batch % t.size:
        raise WrongOption(f"--batch {args.batch} must be divisible by the {t.size} ranks")
    if args.zero not in range(4) or args.amp not in ("O0", "O1", "O2", "O3"):
        raise WrongOption(f"want --zero 0 to 3 and --amp O0 to O3; got {args.zero}, {args.amp}")
    folder, step = snapshot.at_step(args.resume)
    there = snapshot.steps(folder) if args.resume else []
    if args.resume and (not there or step not in (None, *there)):
        raise WrongOption(f"--resume {args.resume}: {folder} holds {there or 'no snapshot'}; is it "
                          "the folder of --save?")
    start = (step or there[-1]) if args.resume else 0
    if args.resume and args.steps <= start:
        raise WrongOption(f"--steps {args.steps}: {folder} holds step {start}, there are none to "
                          "do")
    if args.save and (snapshot.latest(args.save) or 0) > start:
        raise WrongOption(f"--save {args.save} holds the later step {snapshot.latest(args.save)}; "
                          f"this run begins after step {start}: save elsewhere or remove its .json")


def recipe(args, trained):
    """(optimizer, scaler, scheduler) of these parameters or shards."""
    optimizer = optim.AdamW(trained, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    if args.offload:
        optimizer = Offload(optimizer)  # makes master weights, too
    elif args.amp == "O2":
        optim.use_master_weights(optimizer)
    scaler = amp.GradScaler(enabled=args.amp in ("O1", "O2"))
    n_warmup = max(1, args.steps // 10)
    scheduler = lr_scheduler.SequentialLR(optimizer, [
        lr_scheduler.LinearLR(optimizer, 0.05, total_iters=n_warmup),
        lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(1, args.steps - n_warmup),
                                       eta_min=args.lr / 20)], [n_warmup])
    return optimizer, scaler, scheduler


def train(t, args, run, start, data):
    """Steps start + 1 to args.steps, and snapshots: (bytes that this rank sent in the last step,
    seconds of all)."""
    model, optimizer, scaler, scheduler, losses = run.values()
    batches = batches_of(t, data, args, start)
    start_s = time.perf_counter()
    bar = progress(t, range(start + 1, args.steps + 1), "training")
    for step in bar:
        x, y = (put(args, ids) for ids in next(batches))
        start_bytes = t.bytes_sent
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        scaler.scale(loss).backward()
        sent = t.bytes_sent - start_bytes
        if scaler.step(optimizer, max_norm=1.0):
            scheduler.step()
        scaler.update()
        if args.zero:
            start_bytes = t.bytes_sent
            model.gather()
            sent += t.bytes_sent - start_bytes
        losses += average.mean(t, np.array([loss.item()])).tolist()  # of the whole batch
        if t.rank == 0:
            bar.set_postfix_str(f"loss {np.mean(losses[-20:]):.3f}")
        if args.save and (step % args.every == 0 or step == args.steps):
            snapshot.save(args.save, step, t, **run)
    return sent, time.perf_counter() - start_s


class Losses(list):
    """What a snapshot keeps of a list."""

    def state_dict(self):
        return {"losses": self}

    def load_state_dict(self, state):
        self[:] = state["losses"]


def corpus(t):
    """4 MB of text, rank 0's on every rank: machines may have different versions of Python."""
    size = np.zeros(1, np.int64)
    data = text.stdlib_corpus(4 << 20) if t.rank == 0 else None
    if t.rank == 0:
        size[0] = len(data)
    tree.broadcast(t, size)
    data = data.copy() if t.rank == 0 else np.empty(size[0], np.uint8)
    return tree.broadcast(t, data)


def batches_of(t, data, args, first_step=0):
    return text.random_batches(data, args.batch // t.size, args.context, t.rank, t.size, args.seed,
                               first_step)


def loss_of(model, x, y):
    """Mean cross entropy over all positions of all windows; x, y (B, T) -> 0-d."""
    logits = model(x)  # (B, T, 256)
    return F.cross_entropy(logits.reshape(-1, 256), y.reshape(-1))


def same_as_one_rank(t, table, model, data, args):
    """The averaged gradient of n shares against the gradient of the whole batch, in float64."""
    model.double()
    parallel = DataParallel(model, t)
    loss_of(parallel, *(put(args, z) for z in next(batches_of(t, data, args)))).backward()
    parallel.close()
    averaged = [p.grad for p in model.parameters()]
    model.zero_grad()
    x, y = (put(args, np.concatenate(z)) for z in zip(*(
        next(text.random_batches(data, args.batch // t.size, args.context, r, t.size, args.seed))
        for r in range(t.size))))
    loss_of(model, x, y).backward()
    error = max(float(abs(g - p.grad).max() / abs(p.grad).max())
                for g, p in zip(averaged, model.parameters()))
    model.float()
    table.row("gradient, n ranks against one: difference", error, 0.0, "abs<1e-9")


def differing_ranks(t, parameters):
    """How many ranks' weights are not rank 0's, bit for bit."""
    mine = np.concatenate([host(p).reshape(-1) for p in parameters])
    root = tree.broadcast(t, mine.copy())
    differs = np.array([int((mine.view(np.uint8) != root.view(np.uint8)).any())])
    return int(ring.all_reduce(t, differs)[0])


def evaluate(t, args, model, data, n_windows=256):
    """(mean loss, accuracy) over n_windows spread evenly over `data`, dealt to the ranks."""
    windows = text.Windows(data, args.context)
    mine = np.linspace(0, len(windows) - 1, n_windows).astype(int)[t.rank::t.size]
    totals = np.zeros(3)  # loss, right, bytes
    with minidl.no_grad():
        for i in range(0, len(mine), 16):
            x, y = (put(args, np.stack(z)) for z in zip(*(windows[j] for j in mine[i:i + 16])))
            logits = model(x).reshape(-1, 256)
            totals += (F.cross_entropy(logits, y.reshape(-1), reduction="sum").item(),
                       int((logits.data.argmax(-1) == y.reshape(-1)).sum()), y.size)
    ring.all_reduce(t, totals)
    return totals[0] / totals[2], totals[1] / totals[2]


def write(args, model):
    prompt = put(args, np.frombuffer(b"\ndef ", np.uint8)[None].astype(np.int64))
    ids = host(model.generate(prompt, args.sample, temperature=0.75,
                              generator=minidl.Generator(args.seed, 1)))
    return bytes(ids[0].astype(np.uint8)).decode("ascii", "replace").strip()


# -- on a grid: replicas of pipelines, whose stages are divided (12, 13, 14)


def check_grid(t, args):
    n_dp = args.dp or t.size // max(1, args.pp * args.tp)
    if min(n_dp, args.pp, args.tp) < 1 or n_dp * args.pp * args.tp != t.size:
        raise WrongOption(f"--dp {n_dp} --pp {args.pp} --tp {args.tp} want {n_dp} x {args.pp} x "
                          f"{args.tp} ranks, there are {t.size}")
    n_micro = args.micro or args.pp
    if args.micro and args.pp * args.tp == 1 or n_micro < 1:
        raise WrongOption(f"--micro {args.micro}: wanted 1 or more, and with --pp or --tp alone: "
                          "data parallelism takes its windows at a time")
    if args.pp > args.layers or args.tp > args.heads or args.batch % (n_dp * n_micro):
        raise WrongOption(f"want --pp at most --layers {args.layers}, --tp at most --heads "
                          f"{args.heads}, --batch {args.batch} divisible by {n_dp} replicas x "
                          f"{n_micro} micro-batches; got --pp {args.pp}, --tp {args.tp}")
    if args.pp * args.tp > 1 and (args.offload or args.zero > 2 or args.recompute > 1):
        raise WrongOption("with --pp or --tp there is no --offload, no stage of --zero after 2, "
                          "and --recompute is 0 or 1: a stage is one segment")


def main_on_grid(t, args, table, data, valid):
    """main, where the model is divided."""
    axes = Grid(t, dp=args.dp or t.size // (args.pp * args.tp), pp=args.pp, tp=args.tp)
    pipe = pipeline(axes, args)
    n_params = sum(p.numel() for p in pipe.parameters())
    say(t, f"{len(data):,} bytes of text, {axes.dp.size} replicas x {args.batch // axes.dp.size} "
           f"windows of {args.context} bytes, in {pipe.n_micro} micro-batches\n{axes} holds "
           f"{n_params:,} parameters of the GPT")
    if not tied(args):
        say(t, "ZeRO cannot sum what two stages share: the output layer has weights of its own")
    table.row("gradient, n ranks against one: difference", grid_error(axes, args, data), 0.0,
              "abs<1e-9")
    optimizer, scaler, scheduler = recipe(args, pipe.shards() if args.zero else pipe.parameters())
    losses = Losses()
    run = {"model": pipe, "optimizer": optimizer, "scaler": scaler, "scheduler": scheduler,
           "losses": losses}
    folder, step = snapshot.at_step(args.resume)
    start = snapshot.load(folder, t, step=step, **run) if args.resume else 0
    sent, seconds = train_on_grid(axes, args, data, run, start)

    stages = nn.ModuleList(pipe.stages.values())
    held = memory.totals(stages, optimizer)
    counted = f"{memory.report(stages, optimizer, pipe.replicas.values())}\n\n{t.report()}"
    valid_loss = evaluate_on_grid(axes, args, pipe, valid)
    n_different = differing_ranks(axes.dp, pipe.parameters()) + differing_ranks(
        axes.tp, [p for p in pipe.parameters() if p.part is None])
    model = gathered(axes, args, pipe)
    sample = write(args, model) if t.rank == 0 else ""
    say(t, f"\n--- {args.sample} bytes it wrote, gathered on rank 0, after a first 'def ' ---\n"
           f"{sample}\n---\nLeft out: the accuracy, for no rank has all logits of a byte\n")
    say(t, counted)

    table.row("loss before training, bits per byte", losses[0] / math.log(2), 8.0, "rel<0.1")
    table.row("validation loss, bits per byte", valid_loss / math.log(2))
    for axis, n_bytes in grid_bytes(axes, args, pipe).items():
        table.row(f"bytes sent in a step along {axis}", sent[axis], n_bytes, "exact")
    table.row("ranks whose weights differ", n_different, 0, "exact")
    theory = predict(n_params, precision=args.amp, zero=args.zero, world=axes.dp.size)["total"]
    table.row("bytes of state held by this rank", sum(held[kind] for kind in memory.STATES),
              theory, "rel<0.01")
    n_bytes = args.batch * args.context * (args.steps - start)
    table.row("bytes of text per second, all ranks", int(n_bytes / seconds))
    picture(t, draw, losses, valid_loss, sample)
    pipe.close()
    return table


def tied(args):
    return not (args.zero and args.pp > 1)


def whole_gpt(args):
    minidl.manual_seed(args.seed)  # the same on all ranks
    return put(args, nn.GPT(256, args.context, args.layers, args.heads, args.width,
                            tied=tied(args)))


def pipeline(axes, args, exact=False):
    """This rank's stage, of whose matrices it has a part. exact: in float64, without ZeRO."""
    gpt = whole_gpt(args).double() if exact else whole_gpt(args)
    stages = cut(parallelize(gpt, axes, split_logits=True), args.pp)
    if not exact:
        for stage in stages:
            amp.prepare(stage, args.amp)

    def loss(logits, target):
        rows = logits.reshape(-1, logits.shape[2])
        return vocabulary.cross_entropy(axes.tp, rows, target.reshape(-1), 256)

    schedule = one_f_one_b(args.pp, args.micro or args.pp)
    return Pipeline(axes.pp, stages, loss, schedule, dp=axes.dp, recompute=args.recompute == 1,
                    zero=0 if exact else args.zero)


def grid_error(axes, args, data):
    """same_as_one_rank of the grid: the largest difference of a gradient, in float64."""
    pipe = pipeline(axes, args, exact=True)
    pipe.step(*(put(args, z) for z in next(batches_of(axes.dp, data, args))))
    pipe.close()
    model = whole_gpt(args).double()
    x, y = (put(args, np.concatenate(z)) for z in zip(*(
        next(text.random_batches(data, args.batch // axes.dp.size, args.context, r, axes.dp.size,
                                 args.seed)) for r in range(axes.dp.size)), strict=True))
    loss_of(model, x, y).backward()
    wanted = {name: model.get_parameter(name).grad for name in pipe.state_dict()}
    return max(float(abs(whole(p, p.grad) - wanted[name]).max() / abs(wanted[name]).max())
               for stage in pipe.stages.values() for name, p in stage.named_parameters())


def train_on_grid(axes, args, data, run, first):
    """({axis: bytes that this rank sent along it in the last step}, seconds of all)."""
    pipe, optimizer, scaler, scheduler, losses = run.values()
    batches, start_s = batches_of(axes.dp, data, args, first), time.perf_counter()
    for step in (bar := progress(axes.t, range(first + 1, args.steps + 1), "training")):
        pipe.zero_grad()
        before = sent_along(axes, pipe)
        loss = pipe.step(*(put(args, ids) for ids in next(batches)), scaler=scaler)
        sent = sent_along(axes, pipe)
        if scaler.step(optimizer, max_norm=1.0):
            scheduler.step()
        scaler.update()
        if args.zero:
            start = sent_along(axes, pipe)
            pipe.gather()
            sent["dp"] += sent_along(axes, pipe)["dp"] - start["dp"]
        losses += average.mean(axes.dp, np.array([pipe.everywhere(loss)])).tolist()
        if axes.t.rank == 0:
            bar.set_postfix_str(f"loss {np.mean(losses[-20:]):.3f}")
        if args.save and (step % args.every == 0 or step == args.steps):
            snapshot.save(args.save, step, axes.t, **run)
    sent = {axis: n_bytes - before[axis] for axis, n_bytes in sent.items()}
    return sent, time.perf_counter() - start_s


def sent_along(axes, pipe):
    """{axis: bytes that this rank has sent along it}; to the other end's tied weight: along pp."""
    groups = {"tp": {axes.tp.ranks}, "dp": {axes.dp.ranks},
              "pp": {axes.pp.ranks, *(group.ranks for _, group in pipe.tied)}}
    return {axis: sum(axes.t.count(group=ranks).bytes_sent for ranks in of if len(ranks) > 1)
            for axis, of in groups.items()}


def grid_bytes(axes, args, pipe):
    """{axis: bytes that this rank sends along it in a step}, by the formulas of 12, 13 and 10."""
    tp, pp, m = axes.tp, axes.pp, pipe.n_micro
    first, last = pp.rank == 0, pp.rank == pp.size - 1
    rows = args.batch // axes.dp.size // m * args.context
    n_blocks = sum(len(stage.blocks) for stage in pipe.stages.values())
    # bytes a number; autocast sums products in float16, and gradients of its inputs are float32
    forward, backward = {"O0": (4, 4), "O1": (2, 4)}.get(args.amp, (2, 2))
    embedding = 4 if args.amp == "O1" else forward
    times = 2 if args.recompute else 1  # each forward

    def sums(n, item):
        return n * ring.bytes_sent(rows * args.width, item, tp.size, tp.rank)

    of_tp = times * (sums(2 * n_blocks, forward) + sums(first, embedding))
    of_tp += sums(2 * n_blocks + last, backward)
    of_tp += last * vocabulary.bytes_sent(rows, 4, tp.size, tp.rank)
    of_pp = (2 - first - last) * m * rows * args.width * 4 + (not last) * 8 * HEADER
    of_pp += sum(ring.bytes_sent(p.numel(), p.dtype.itemsize, group.size, group.rank)
                 for p, group in pipe.tied)
    return {"tp": m * of_tp, "pp": of_pp,
            "dp": sum(replica.bytes_sent() for replica in pipe.replicas.values())}


def evaluate_on_grid(axes, args, pipe, data, n_windows=256):
    """Mean loss over about n_windows windows spread over `data`: the pipelines share them."""
    windows, n = text.Windows(data, args.context), 16 * pipe.n_micro  # of one pipeline, at a time
    n_batches = -(-n_windows // (n * axes.dp.size))
    mine = np.linspace(0, len(windows) - 1, n_batches * n * axes.dp.size).astype(int)
    mine, total = mine[axes.dp.rank::axes.dp.size].reshape(n_batches, n), 0.0
    with minidl.no_grad():
        for batch in mine:
            loss = pipe.step(*(put(args, np.stack(z)) for z in zip(*(windows[j] for j in batch))))
            total += pipe.everywhere(loss) / n_batches
    return float(average.mean(axes.dp, np.array([total]))[0])


def gathered(axes, args, pipe):
    """The whole model on rank 0; None on the others. A real one would not fit: see a snapshot."""
    state = {name: host(x) for stage in pipe.stages.values()
             for name, x in whole_state_dict(stage).items()}
    states = objects.gather(axes.pp, state)
    if axes.t.rank:
        return None
    model = whole_gpt(args)
    model.load_state_dict({name: x for part in states for name, x in part.items()})
    return model


def draw(plt, losses, valid_loss, sample):
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5))
    # bits, as in the table: nats / ln 2
    losses, valid_loss = np.asarray(losses) / math.log(2), valid_loss / math.log(2)
    window = min(len(losses), 10)
    smooth = np.convolve(losses, np.ones(window) / window, "valid")
    left.plot(range(1, len(losses) + 1), losses, alpha=0.3, lw=1, label="training, each step")
    left.plot(range(window, len(losses) + 1), smooth, color=LINES[0],
              label=f"training, mean of {window}")
    left.plot(len(losses), valid_loss, "o", color=ORANGE, label=f"validation {valid_loss:.2f}")
    line_at(left, "knows nothing: 8 bits", y=8, color=GREY)
    left.set(xlabel="step", ylabel="loss (bits per byte)", title="A GPT reads the standard library",
             ylim=(0, None))
    left.legend()
    right.set_title("what it writes")
    right.axis("off")
    lines = [line[:58] for line in sample.splitlines()][:22]
    right.text(0, 1, "\n".join(lines).replace("$", r"\$"), family="monospace", fontsize=9.5,
               va="top", transform=right.transAxes)
    return figure


if __name__ == "__main__":
    launch(main, OPTIONS, ranks=4)
