"""PyTorch's pipeline schedules, action by action, beside those of minidl.

    GPipe, 1F1B             what PyTorch's schedule asks of its stage, in order, while it runs
    Interleaved1F1B         the order that PyTorch makes before it runs; the same for
    InterleavedZeroBubble   its ZB1P, with one stage a rank: minidl's zb_h1

PyTorch has more schedules than minidl: those of several stages a rank with a split backward, of
two directions, and the breadth-first one. For these `schedule.check` must say that they can run,
and must refuse each of them with a forward and its backward swapped.

What Schedule1F1B._get_pipeline_order prints is no oracle: its last rank does F1 to Fm, not F0 to
F(m - 1). So the running schedule is recorded.
Source: torch.distributed.pipelining.schedules, PyTorch 2.13.
"""

from unittest import mock

from torch.distributed.pipelining import schedules
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from minidl.parallel.model import schedule
from minidl.parallel.model.schedule import Do

RANKS = (1, 2, 3, 4, 5, 8)
MICRO = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24)
CHUNKS = (2, 3, 4)  # with one stage a rank minidl's is 1F1B, and PyTorch's no schedule of a paper
KINDS = {schedules.FORWARD: "F", schedules.FULL_BACKWARD: "B", schedules.BACKWARD_INPUT: "B",
         schedules.BACKWARD_WEIGHT: "W"}
OTHERS = {"LoopedBFS": (2, 3), "InterleavedZeroBubble": (2, 3), "ZBVZeroBubble": (2,),
          "DualPipeV": (2,)}


def cases(word=""):
    for name, outcome, why in _cases():
        if word in name:
            yield name, outcome, why


def _cases():
    for p in RANKS:
        for m in MICRO:
            yield compared(f"GPipe p={p} m={m}", schedule.gpipe, recorded, schedules.ScheduleGPipe,
                           p, m)
            yield compared(f"1F1B p={p} m={m}", schedule.one_f_one_b, recorded,
                           schedules.Schedule1F1B, p, m)
            yield compared(f"ZB1P p={p} m={m}", schedule.zb_h1, planned,
                           schedules.ScheduleInterleavedZeroBubble, p, m)
            for v in CHUNKS:
                yield compared(f"Interleaved1F1B p={p} m={m} v={v}", schedule.interleaved, planned,
                               schedules.ScheduleInterleaved1F1B, p, m, v)
            for name, chunks in OTHERS.items():
                for v in chunks:
                    yield from checked(name, p, m, v)


def compared(name, ours, theirs, kind, *sizes):
    """Are the orders that ours(*sizes) and theirs(kind, *sizes) return equal, rank by rank?"""
    try:
        want = theirs(kind, *sizes)
    except ValueError as error:
        return name, "not mapped", f"{name.split()[0]}: PyTorch refuses: {shortened(error)}"
    try:
        got = ours(*sizes)
    except ValueError as error:
        return name, "not mapped", f"{name.split()[0]}: minidl refuses: {shortened(error)}"
    for rank, (a, b) in enumerate(zip(got, want, strict=True)):
        if a != b:
            at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            return name, "wrong", (f"rank {rank}, part {at}: {' '.join(map(str, a[at:at + 3]))}, "
                                   f"PyTorch has {' '.join(map(str, b[at:at + 3]))}")
    return name, "passed", ""


def shortened(error):
    """Returns the first words of a message, without its numbers."""
    return "".join("N" if c.isdigit() else c for c in " ".join(str(error).split()))[:60]


def stage_of(p, v, rank):
    """Returns a stand-in for a stage of p ranks with v stages each, which computes nothing."""
    stage = mock.Mock()
    stage.group_rank, stage.group_size, stage.num_stages = rank, p, p * v
    stage.stage_index, stage.submod, stage.is_first, stage.is_last = rank, None, False, False
    for ops in ("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops"):
        getattr(stage, ops).return_value = []
    return stage


def recorded(kind, p, m):
    """Returns, for each rank, the parts that a running schedule asks of its stage."""
    return [recorded_on(kind, p, m, rank) for rank in range(p)]


def recorded_on(kind, p, m, rank):
    found, stage = [], stage_of(p, 1, rank)
    stage.forward_one_chunk.side_effect = lambda i, *_, **__: found.append(Do("F", rank, i))
    stage.backward_one_chunk.side_effect = lambda i, **_: found.append(Do("B", rank, i))
    run = kind(stage, m)
    run._stage_forward_initialized = run._stage_backward_initialized = True
    with mock.patch.object(run, "_initialize_stage"):
        run._step_microbatches([()] * m, [{}] * m)
    return found


def planned(kind, p, m, v=1):
    """Returns the order that a schedule of v stages a rank has made for each of its ranks."""
    made = kind([stage_of(p, v, 0) for _ in range(v)], m)
    return [parts(made.pipeline_order[rank]) for rank in range(p)]


def parts(actions):
    """Returns PyTorch's actions as minidl's: no waiting, and a pair of actions as two."""
    found = []
    for action in actions:
        for one in action and (action.sub_actions or [action]) or ():
            if one.computation_type in KINDS:  # and no reduction of gradients
                found.append(Do(KINDS[one.computation_type], one.stage_index,
                                one.microbatch_index))
    return found


def checked(name, p, m, v):
    """Does minidl's check accept PyTorch's schedule, and refuse it with two parts swapped?"""
    title = f"{name} p={p} m={m} v={v}"
    try:
        actions = get_schedule_ops(name, p, m, v)
    except (ValueError, AssertionError) as error:
        yield title, "not mapped", f"{name}: PyTorch refuses: {shortened(error)}"
        return
    order = [parts(rank) for rank in actions]
    kinds = {kind for rank in order for kind, *_ in rank}
    if "W" in kinds and whole_backwards(order):
        yield title, "not mapped", f"{name}: some backwards whole, some split"
        return
    try:
        schedule.check(order)
        yield title, "passed", ""
    except ValueError as error:
        if "takes the result" in str(error):
            yield title, "not mapped", f"{name}: wants two messages of a stage under way at a time"
        else:
            yield title, "wrong", f"minidl refuses: {error}"
        return
    swapped = [list(rank) for rank in order]
    last = swapped[-1]
    a = next(i for i, do in enumerate(last) if do.kind == "F")
    b = next(i for i, do in enumerate(last) if do[1:] == last[a][1:] and do.kind == "B")
    last[a], last[b] = last[b], last[a]
    try:
        schedule.check(swapped)
        yield f"{title} swapped", "wrong", "check accepts a backward before its forward"
    except ValueError:
        yield f"{title} swapped", "passed", ""


def whole_backwards(order):
    """Returns whether some backward has no W: it is then one part."""
    n = [sum(do.kind == kind for rank in order for do in rank) for kind in "BW"]
    return n[0] != n[1]
