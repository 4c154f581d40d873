"""Pipeline parallelism: `Pipeline` runs stages of a model on micro-batches, by any schedule.

The plain form, with the picture of the stages and two schedules: minidl/plain/pipeline.py. Here any
schedule of schedule.py can run, also with several stages on a rank. The first message announces the
shapes of the tensors. Two stages may share a weight. Stages may be recomputed, and may have
replicas.

One rule runs any schedule. For each part of the work, a rank first waits for the arrays that it
needs. Then it computes, starts to send the result, and goes on. A rank waits for a send only before
the next send of the same stage and direction. So if two neighbours send to each other, both
messages travel while both ranks wait to receive. A send runs in the background, so a rank goes on
even if its neighbour is not ready to receive.

The first message of a stage in a step announces the number, shapes and dtypes of the tensors. So
the user gives no shapes, and the last batch may be smaller. All micro-batches of a step have the
same shapes. Over each boundary between ranks, a step with m micro-batches sends m activations, m
gradients of the same size, and one header of 256 bytes.

The loss is the mean over the micro-batches. Gradients have the same bits as on one rank that runs
the micro-batches one after another. If two ranks share a weight (a GPT's embedding and output
layer), its gradient is summed over these ranks at the end. If step() is called several times before
`zero_grad`, the gradients add up, as with several backwards. `Parameter.sharded_by` tells clipping
and GradScaler that other ranks have gradients, too.

Sources: Huang et al. 2019 (arXiv 1811.06965); Narayanan et al. 2021 (arXiv 2104.04473).
Test: tests/parallel/model/test_pipeline.py   Tutorial: tutorials/14_pipeline.py
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from minidl import backend
from minidl.backward import clear_gradient, gradient_or_zeros, leaf_uses, walk
from minidl.comm import tree
from minidl.memory.recompute import recompute
from minidl.mode import is_grad_enabled
from minidl.nn.module import Parameter
from minidl.parallel.data import samples
from minidl.parallel.data.bucket import default_all_reduce
from minidl.parallel.data.data_parallel import DataParallel, tensors_of
from minidl.parallel.model import schedule as schedules
from minidl.parallel.model.schedule import At
from minidl.parallel.model.split import backward_to_inputs
from minidl.parallel.shards import Shards
from minidl.parallel.zero.zero import Zero1, Zero2
from minidl.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from minidl.comm.transport.protocol import Transport
    from minidl.nn.module import Module

HEADER = 32  # how many int64 numbers a header has
HEADER_BYTES = 8 * HEADER
DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "uint8", "bool")


class Pipeline:
    """Holds this rank's stages, and runs this rank's part of each step.

        minidl.manual_seed(0)                                  # the same model on every rank
        stages = cut(nn.GPT(...), t.size)
        pipe = Pipeline(t, stages, F.cross_entropy, one_f_one_b(t.size, 8))
        optimizer = optim.AdamW(pipe.parameters(), lr=1e-3)
        loss = pipe.step(x, y)                                 # forward and backward of a batch
        optimizer.step()

    All ranks must draw the model from the same random numbers. Afterwards call
    `minidl.manual_seed(seed, stream=1 + t.rank)`. Then each rank draws other numbers for dropout.

    stages:     all stages of the model. A stage is a Module that takes the result of the previous
                stage: a Tensor, or a tuple of Tensors. The schedule decides which stages a rank
                keeps
    loss:       a function loss(output, target) that returns the mean loss of a micro-batch
    schedule:   for each rank a list of `Do`, from schedule.py. Its parts are F (forward) and B
                (backward). In ZB-H1 backward has two parts: B for the inputs, W for the weights
    dp:         the transport of the ranks with the same stages (replicas). The gradients of the
                replicas are averaged while the last backward of a step runs
    zero:       0, or the stage of ZeRO over dp. With 1 or 2 give `shards()` to the optimizer, and
                call `gather()` after the optimizer's step. Gradients are scattered only in the
                backward of the last micro-batch
    recompute:  if True, a rank keeps only the input of each micro-batch, and runs the stage again
                in backward. In ZB-H1 part B runs the stage again. Then the inputs of matrix
                products are kept until part W
    inputs_first: for schedules without W. If True, backward is still split into two parts
                (split.py), and the input's gradient is sent between these parts. So the previous
                stage gets this gradient earlier: it does not wait for part W. In GPipe and 1F1B a
                rank is then idle for (p-1)(F + B) seconds, not for (p-1)(F + B + W). A rank holds
                the same activations as without inputs_first, and also the gradients of one
                micro-batch's matrix products
    seconds:    (F, B, W), the seconds of a forward F, of the backward B for the inputs, and of the
                backward W for the weights. Only a modelled clock uses these numbers

    The attribute `lanes` has the times of this rank's work in the last step: a list of At
    (schedule.py).

    Raises TypeError or ValueError if stages, schedule and ranks do not fit together."""

    def __init__(self, t: Transport, stages: Sequence[Module], loss: Callable[..., Tensor],
                 schedule: Sequence[Any], *, dp: Transport | None = None, zero: int = 0,
                 recompute: bool = False, inputs_first: bool = False,
                 seconds: Sequence[float] = (0, 0, 0)):
        if not (hasattr(stages, "__len__") and hasattr(schedule, "__len__")):
            raise TypeError("a pipeline wants a list of stages, such as cut(model, n), and a "
                            "schedule, such as one_f_one_b(n, m); got "
                            f"{type(stages).__name__} as stages and {type(schedule).__name__} as "
                            "schedule")
        if len(schedule) != t.size:
            raise ValueError(f"rank {t.rank}: a pipeline wants a schedule for {t.size} ranks, the "
                             f"number of ranks in t; got a schedule for {len(schedule)} "
                             "ranks")
        schedules.check(schedule)
        self.ranks = schedules.rank_of_stage(schedule)
        if len(self.ranks) != len(stages):
            raise ValueError(f"rank {t.rank}: the schedule has {len(self.ranks)} stages, but the "
                             f"model is cut into {len(stages)} stages. Cut the model into "
                             f"{len(self.ranks)} stages, or make another schedule")
        self.t = t
        self.loss = loss
        self.zero = zero
        self.recompute = recompute
        self.seconds = seconds

        self.dos = schedule[t.rank]
        self.last = {(do.kind, do.stage): do for do in self.dos}  # (kind, stage) -> the last part
        self.n_micro = schedules.n_micro(schedule)
        self.splits = schedules.splits(schedule)
        self.in_two = self.splits or inputs_first  # True if part W computes the weights' gradients
        self.lanes = []

        self.stages = {s: stages[s] for s, rank in enumerate(self.ranks) if rank == t.rank}
        self.tied = self._find_tied(stages)
        self.shared_here = self._find_shared_here()
        self.names = self._names(stages)
        self.joined = Shards(t, self.parameters())
        self.replicas = self._replicas(dp, zero)
        self.nothing = None  # an empty shard, on a rank without shards under ZeRO
        if zero and not self.replicas:
            self.nothing = Parameter(self.xp().zeros(0, np.float32))
            self.nothing.declare(sharded_by=(self.joined,))

    def _replicas(self, dp, zero):
        """Returns {stage: its DataParallel, Zero1 or Zero2 over dp} for this rank's stages with
        parameters to train."""
        t = self.t
        shared = [*self.tied, *self.shared_here]
        if zero not in (0, 1, 2) or zero and (dp is None or shared):
            raise ValueError(f"rank {t.rank}: a pipeline wants zero=0, 1 or 2. With 1 or 2 it also "
                             "wants dp=, and no weight that two pipeline stages share; got "
                             f"zero={zero}, dp={dp}, {len(shared)} shared weights")
        replicas = {}
        for s, stage in self.stages.items() if dp is not None else ():
            elsewhere = {p for p, last in self.shared_here.items() if last != s}
            if not any(p.requires_grad and p not in elsewhere for p in stage.parameters()):
                continue
            if zero:
                replicas[s] = (Zero1, Zero2)[zero - 1](stage, dp)
            else:
                replicas[s] = DataParallel(stage, dp, without=elsewhere)
        return replicas

    def _find_shared_here(self):
        """Returns {parameter: stage} for parameters that several stages of this rank share.
        Of these stages, `stage` runs the last backward of a step. After this backward the gradient
        is complete, so `stage` averages the gradient over dp."""
        last_backward = {do.stage: i for i, do in enumerate(self.dos) if do.kind != "F"}
        stages_of = {}
        for s in sorted(self.stages, key=last_backward.get):
            for p in self.stages[s].parameters():
                stages_of.setdefault(p, []).append(s)
        return {p: found[-1] for p, found in stages_of.items() if len(found) > 1}

    def _find_tied(self, stages):
        """Finds the parameters that this rank shares with other ranks. Returns a list of pairs
        (parameter, transport of the ranks that have this parameter). All ranks use the same order.
        Collective."""
        ranks_of = {}  # parameter -> the set of ranks that have it
        for stage, rank in zip(stages, self.ranks, strict=True):
            for p in stage.parameters():
                ranks_of.setdefault(p, set()).add(rank)
        tied = []
        for p, ranks in ranks_of.items():
            if len(ranks) == 1:
                continue
            group = self.t.subgroup(sorted(ranks))
            if group is not None:  # this rank is in the group
                p.declare(copies=p.copies * len(ranks))
                tied.append((p, group))
        return tied

    def _names(self, stages):
        """Returns {parameter of this rank: its name in the whole model}. For a shared parameter it
        is the first of its names."""
        names = {}
        for stage in stages:
            for name, p in stage.named_parameters():
                names.setdefault(p, name)
        return {p: names[p] for p in self.parameters()}

    def parameters(self) -> list[Parameter]:
        """Returns the parameters of this rank's stages, each once."""
        every = [p for stage in self.stages.values() for p in stage.parameters()]
        return list(dict.fromkeys(every))

    def xp(self):
        """Returns the array library of this rank's weights, NumPy or CuPy."""
        return backend.xp_of([p.array for p in self.parameters()[:1]])

    def shards(self) -> list[Parameter]:
        """Returns the shards of all stages of this rank, for the optimizer under ZeRO. If no stage
        has parameters to train, returns one empty shard, so that this rank takes part in
        clipping."""
        if self.nothing is not None:
            return [self.nothing]
        return [shard for replica in self.replicas.values() for shard in replica.shards()]

    def gather(self) -> None:
        """Call this after the optimizer's step under ZeRO: all replicas get the new weights."""
        for replica in self.replicas.values():
            replica.gather()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Like Module.zero_grad(). Also clears the shards' gradients."""
        for replica in self.replicas.values():
            replica.zero_grad(set_to_none)
        for p in self.parameters() if not self.zero else ():
            clear_gradient(p, set_to_none)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns {name in the whole model: Tensor} of this rank's stages."""
        state = {}
        for stage in self.stages.values():
            state.update(stage.state_dict())
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copies the weights of this rank's stages from the whole model's state dict."""
        for stage in self.stages.values():
            stage.load_state_dict({name: state[name] for name in stage.state_dict()})

    def train(self, mode: bool = True):
        for stage in self.stages.values():
            stage.train(mode)
        return self

    def eval(self):
        return self.train(False)

    def step(self, inputs: Any = None, targets: Any = None, scaler: Any = None) -> Any:
        """Runs forward and backward of a batch, and adds the gradients of its mean loss to p.grad
        of each parameter p. Under no_grad it runs only forward. On the rank of the last stage,
        returns a Tensor, the mean loss. On the other ranks returns None.

        inputs, targets: an array or a Tensor, which is cut along its first dimension into equal
            micro-batches. They can also be lists of micro-batches. Only the first stage reads
            inputs, and only the last stage reads targets. Every rank may pass both arguments.
        scaler: a GradScaler. The loss is multiplied by its scale before backward."""
        step = _Step(self, inputs, targets, scaler)
        earlier = self._set_aside() if step.trains else {}
        self.lanes = []
        for do in self.dos:
            if step.trains or do.kind == "F":
                step.run(do)
        step.end()
        if step.trains:
            self._sum_tied(earlier)
        return step.total

    def _set_aside(self):
        """Returns {shared weight: a copy of its gradient of earlier steps, or None if it has no
        gradient}, and clears these gradients. They are already summed over the ranks, so this step
        starts without them."""
        earlier = {}
        for p, _ in self.tied:
            earlier[p] = None if p.grad is None else p.grad.array.copy()
            p.grad = None
        return earlier

    def _sum_tied(self, earlier):
        """Sums this step's gradient of each shared weight over the ranks that have it, and adds the
        gradient of earlier steps."""
        for p, group in self.tied:
            if p.requires_grad:
                grad = gradient_or_zeros(p)
                all_reduce = default_all_reduce([p])
                all_reduce(group, grad)
                p.grad = grad if earlier[p] is None else earlier[p] + grad

    def everywhere(self, loss: Any):
        """Returns step()'s loss as a float, on every rank. Collective: a broadcast."""
        value = np.array([0.0 if loss is None else loss.item()])
        return float(tree.broadcast(self.t, value, self.ranks[-1])[0])

    def close(self) -> None:
        """Ends the threads of data parallelism."""
        for replica in self.replicas.values():
            replica.close()


class _Step:
    """The state of one step: the inputs and graphs of the micro-batches, and the messages that are
    being sent."""

    def __init__(self, pipe, inputs, targets, scaler):
        self.pipe = pipe
        self.t = pipe.t
        self.scaler = scaler
        self.trains = is_grad_enabled()
        self.inputs = self.targets = None
        if 0 in pipe.stages:
            self.inputs = _micro_batches(self.t, inputs, pipe.n_micro, "inputs")
        if len(pipe.ranks) - 1 in pipe.stages:
            self.targets = _micro_batches(self.t, targets, pipe.n_micro, "targets")
        self.held = {}  # (stage, micro) -> (the stage's inputs, the roots of its backward)
        # (stage, micro) -> (a function that computes part W, leaves whose gradient waits for W,
        # leaves that backward reaches)
        self.later = {}
        self.here = {}  # Do -> its results, if another stage of this rank needs these results
        # stage -> [(shape, dtype, True if it needs a gradient)], one entry for each of its results
        self.form = {}
        self.n_samples = 0
        if self.inputs is not None:
            self.n_samples = sum(samples.count(f"rank {self.t.rank}", x) for x in self.inputs)
        self.sending = {}  # (kind, stage) -> requests of its last message
        self.total = None
        for replica in pipe.replicas.values():
            if self.pipe.zero:
                replica.check()
            if self.trains:
                replica._share_buffers()
                # only the last backward of a step sends gradients
                replica.reducer.expect((), 0, sends=False)

    def run(self, do):
        """Runs one part of the work: receives its arrays, computes, and starts to send."""
        pipe, t = self.pipe, self.t
        try:
            coming = self.coming(do)
            start = t.time()
            arrays = getattr(self, do.kind)(do, coming)
            f, b, w = pipe.seconds
            if not pipe.in_two:
                b += w
            t.compute({"F": f, "B": b, "W": w}[do.kind])
            begun = do.kind == "B" and pipe.in_two and not pipe.splits
            if begun:
                self.send(do, arrays)
                self.W(do, None)
                t.compute(w)
        except Exception as error:
            error.add_note(f"rank {t.rank}, in {do}: stage {do.stage}, micro-batch {do.micro}")
            raise
        pipe.lanes.append(At(do, start, t.time()))
        if not begun:
            self.send(do, arrays)

    def end(self):
        for requests in self.sending.values():
            _wait(requests)

    # -- the parts F, B and W. Each part returns the arrays for another stage, or None

    def F(self, do, arrays):
        pipe = self.pipe
        stage = pipe.stages[do.stage]
        is_last = do.stage == len(pipe.ranks) - 1
        run = stage
        if is_last and pipe.in_two:
            run = partial(self.last, stage, do.micro)

        if do.stage == 0:
            leaves = []
            outputs = self.call(run, self.inputs[do.micro])
        else:
            form = self.form[do.stage - 1]
            leaves = [Tensor(x, wants) for x, (_, _, wants) in zip(arrays, form, strict=True)]
            outputs = self.call(run, *leaves)

        if is_last:
            loss, root = outputs if pipe.in_two else self.losses(outputs, do.micro)
            loss = loss.detach()
            self.total = loss if self.total is None else self.total + loss
            results, roots = None, [root]
        else:
            results, roots = self.pass_on(do, outputs)
        if self.trains:
            self.held[do[1:]] = leaves, [y for y in roots if y.requires_grad]
        return results

    def pass_on(self, do, outputs):
        """Returns (arrays, roots). arrays: the arrays of a stage's result, which are sent to the
        next stage. roots: the Tensors from which the stage's backward starts. outputs: the stage's
        result, a Tensor or nested Tensors."""
        outputs_of_stage = tensors_of(outputs)
        if not outputs_of_stage:
            raise TypeError(f"rank {self.t.rank}: stage {do.stage} of a pipeline must return a "
                            f"Tensor or a tuple of Tensors; got {type(outputs).__name__}")
        self.agree(do, [(y.shape, y.dtype, y.requires_grad) for y in outputs_of_stage])
        # backward needs only the graph; the next stage has the arrays
        roots = [Tensor._from(_hollow(y), y.grad_fn, y.slot) if y.grad_fn else y
                 for y in outputs_of_stage]
        return [y.array for y in outputs_of_stage], roots

    def last(self, stage, micro, *inputs):
        """Runs the last stage and the loss. If recompute is on, part B runs the stage and the loss
        again, and leaves the gradients of the weights to part W."""
        return self.losses(stage(*inputs), micro)

    def losses(self, output, micro):
        """Returns (this micro-batch's part of the mean loss, this part times the scaler's
        scale)."""
        loss = self.pipe.loss(output, self.targets[micro]) / self.pipe.n_micro
        if self.scaler is None:
            return loss, loss
        return loss, self.scaler.scale(loss)

    def call(self, stage, *inputs):
        if self.pipe.recompute:
            return recompute(stage, *inputs)
        return stage(*inputs)

    def agree(self, do, form):
        """Raises ValueError unless a stage's results have the same shapes and dtypes for all
        micro-batches of a step. One header, which is sent once in a step, describes the results of
        all micro-batches."""
        if self.form.setdefault(do.stage, form) != form:
            raise ValueError(
                f"rank {self.t.rank}: stage {do.stage} must return the same shapes and dtypes for "
                f"all micro-batches of a step; got {_in_words(self.form[do.stage])} for the first "
                f"micro-batch, and {_in_words(form)} for micro-batch {do.micro}")

    def B(self, do, gradients):
        pipe = self.pipe
        leaves, roots = self.held.pop(do[1:])
        if do.stage == len(pipe.ranks) - 1:  # backward starts here, from the loss
            gradients = [None] * len(roots)
        used = {}
        if pipe.last["B", do.stage] == do:
            used = leaf_uses(roots)

        if pipe.in_two:
            weights, waiting = backward_to_inputs(roots, gradients)
            self.later[do[1:]] = weights, waiting, used
        else:
            self.expect(do, used)
            walk(roots, gradients)
            self.send_without_backward(do, used)
        return [gradient_or_zeros(x) for x in leaves if x.requires_grad]

    def W(self, do, _):
        weights, waiting, used = self.later.pop(do[1:])
        sends = self.expect(do, used)
        weights()
        if sends is not None:  # counts the gradients that part B has computed
            for p in sends.params:
                if p in used and p not in waiting:
                    sends.gradient_ready(p)
        self.send_without_backward(do, used)

    def expect(self, do, used):
        """Returns the stage's Reducer if `do` is the stage's last backward in this step and reaches
        a parameter. In this case expect() also tells the Reducer that this backward sends
        gradients. Else returns None. used: the leaves that the backward reaches."""
        reducer = self.reducer_of_last(do)
        if reducer is None or used.keys().isdisjoint(reducer.params):
            return None
        reducer.expect(used, self.n_samples)
        return reducer

    def send_without_backward(self, do, used):
        """Sends the gradients of the earlier backwards if `do` is the stage's last backward and
        reaches no parameter. Otherwise does nothing. used: the leaves that the backward reaches."""
        reducer = self.reducer_of_last(do)
        if reducer is not None and used.keys().isdisjoint(reducer.params):
            reducer.absent(self.n_samples)

    def reducer_of_last(self, do):
        """Returns the stage's Reducer if `do` is the stage's last backward in this step. Else
        returns None."""
        replica = self.pipe.replicas.get(do.stage)
        if replica is None or self.pipe.last[do[:2]] != do:
            return None
        return replica.reducer

    # -- messages between stages

    def coming(self, do):
        """Waits for the arrays that the part `do` needs from another stage. Returns these arrays,
        or None if the part needs no arrays."""
        needed = schedules.before(do, len(self.pipe.ranks))
        if needed is None or needed.stage == do.stage:
            return None
        if needed in self.here:
            return self.here.pop(needed)
        src = self.pipe.ranks[needed.stage]
        label = "pipeline activations" if do.kind == "F" else "pipeline gradients"
        with self.t.named(label):
            if do.kind == "F":
                if needed.stage not in self.form:
                    self.read_header(needed, src)
                form = self.form[needed.stage]
            else:  # receives a gradient for each result of this stage that needs one
                form = [(shape, dtype, wants) for shape, dtype, wants in self.form[do.stage]
                        if wants]
            xp = self.pipe.xp()
            arrays = [xp.empty(shape, dtype) for shape, dtype, _ in form]
            _wait([self.t.irecv(x, src, _tag(needed)) for x in arrays])
        return arrays

    def read_header(self, needed, src):
        """Receives a stage's first message of a step. The message announces the tensors that
        follow."""
        header = self.t.recv(np.empty(HEADER, np.int64), src, _tag(needed))
        self.n_samples, m, self.form[needed.stage] = _read(header)
        if m != self.pipe.n_micro:
            raise ValueError(f"rank {self.t.rank}: all ranks must have the same schedule; got a "
                             f"schedule for {self.pipe.n_micro} micro-batches on this rank, and "
                             f"for {m} on rank {src}")

    def send(self, do, arrays):
        """Starts to send `arrays`, the result of a part. Before that, waits until the stage's
        previous message in this direction has been received."""
        if do.kind == "W":
            return
        to = do.stage + 1 if do.kind == "F" else do.stage - 1
        if not 0 <= to < len(self.pipe.ranks):
            return
        dst = self.pipe.ranks[to]
        if dst == self.t.rank:
            self.here[do] = arrays
            return
        label = "pipeline activations" if do.kind == "F" else "pipeline gradients"
        with self.t.named(label):
            way = do.kind, do.stage
            first = way not in self.sending
            _wait(self.sending.get(way, ()))
            if do.kind == "F" and first:
                counts = self.n_samples, self.pipe.n_micro
                header = _header(self.t, do, counts, self.form[do.stage])
                arrays = [header, *arrays]
            self.sending[way] = [self.t.isend(x, dst, _tag(do)) for x in arrays]


def _tag(do):
    """Returns a different tag for each stage and each direction."""
    return 1 + 2 * do.stage + (do.kind == "B")


def _wait(requests):
    for request in requests:
        request.wait()


def _hollow(y):
    """Returns an array of y's shape and dtype that needs only the memory of one element."""
    return y._xp.broadcast_to(y._xp.zeros((), y.dtype), y.shape)


def _in_words(form):
    return ", ".join(f"{dtype} {tuple(shape)}" for shape, dtype, _ in form)


def _header(t, do, counts, form):
    """Returns a header, (HEADER,) int64. First come the numbers of samples, micro-batches and
    tensors. Then four things follow for each tensor: its dtype, 1 if it requires a gradient (else
    0), its number of dimensions, and its shape."""
    numbers = [*counts, len(form)]
    for shape, dtype, wants in form:
        if str(dtype) not in DTYPES:
            raise TypeError(f"rank {t.rank}: stage {do.stage} of a pipeline must return "
                            f"Tensors of one of the dtypes {', '.join(DTYPES)}; got {dtype}")
        numbers += [DTYPES.index(str(dtype)), wants, len(shape), *shape]
    if len(numbers) > HEADER:
        raise ValueError(f"rank {t.rank}: stage {do.stage} returns {len(form)} tensors. Their "
                         f"shapes need {len(numbers)} numbers, but the header has room for "
                         f"{HEADER}. Cut the model at a place where fewer tensors pass")
    return np.array(numbers + [0] * (HEADER - len(numbers)), np.int64)


def _read(header):
    """Returns (number of samples, number of micro-batches, form) from a header. form: a list with
    (shape, dtype, True if the tensor requires a gradient) for each tensor."""
    n_samples, n_micro, n, *numbers = header.tolist()
    form = []
    for _ in range(n):
        dtype, wants, ndim, *numbers = numbers
        form.append((tuple(numbers[:ndim]), backend.as_dtype(DTYPES[dtype]), bool(wants)))
        numbers = numbers[ndim:]
    return n_samples, n_micro, form


def _micro_batches(t, batch, m, name):
    """Returns a list of m micro-batches. If `batch` is a list, returns this list. Otherwise cuts
    the batch into equal parts. Raises TypeError or ValueError if that is not possible."""
    if batch is None:
        raise ValueError(f"rank {t.rank}: this rank's stage needs the {name} of the step; got None."
                         f" Pass {name} to step()")
    if isinstance(batch, list):
        if len(batch) != m:
            raise ValueError(f"rank {t.rank}: the schedule wants a list of {m} micro-batches as "
                             f"{name}; got a list of {len(batch)}")
        return batch
    if not hasattr(batch, "shape"):
        raise TypeError(f"rank {t.rank}: wanted {name} as one array or Tensor, or as a list of {m} "
                        f"micro-batches; got {type(batch).__name__}")
    n = len(batch)
    if n % m or not n:
        raise ValueError(f"rank {t.rank}: wanted {name} with a number of samples divisible by {m}, "
                         f"the number of micro-batches; got {n} samples. Use {n - n % m or m} "
                         "samples, or a schedule with another number of micro-batches")
    return [batch[i * n // m:(i + 1) * n // m] for i in range(m)]
