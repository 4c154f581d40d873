"""A training step as one launch: CUDA graphs.

    step = minidl.graphed(step)      runs it a few times, then once more under the stream's eyes
    loss = step()                    some hundred launches again, for the price of one

A step of a small model is hundreds of kernels of a few microseconds, and Python needs longer to
launch them than the GPU to run them. What can be captured is a step that the host takes no part in:
it waits for nothing, uploads nothing, and passes the same numbers to the same addresses each time.
So: the batch is copied into tensors that stay (`x.copy_(batch)`), the loss is returned and not
read, the learning rate is fixed, and no dropout, whose counter the host would have to move on.
AdamW's step count and the loss scale are on the device and do move on.

The graph's memory is a pool of its own, which nobody else is lent from: its tensors stay where they
are. What `step` returned when it was captured is what each replay writes anew.
Source: CUDA C++ Programming Guide, "CUDA Graphs"; torch.cuda.make_graphed_callables.
Test: tests/cuda/test_cuda_graph.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minidl import backend, random
from minidl.cuda.launch import tables_of_a_graph

if TYPE_CHECKING:
    from collections.abc import Callable

    from minidl.hints import Result


def graphed(step: Callable[[], Result], warm_up: int = 3) -> Callable[[], Result]:
    """A function that replays `step()`, whatever it started on the GPU; it returns what `step` did
    when it was captured. warm_up: steps before, which count as steps, to fill the pool and to
    compile kernels. RuntimeError where a replay would not be a step."""
    cupy = backend.import_cupy()
    stream, pool = cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
    outside = cupy.cuda.get_current_stream()
    stream.wait_event(outside.record())
    with stream, cupy.cuda.using_allocator(pool.malloc):
        for _ in range(warm_up):
            step()
        stream.synchronize()
        with random.watched() as used, tables_of_a_graph(cupy.cuda.MemoryPool()) as tables:
            stream.begin_capture()
            try:
                result = step()
            finally:
                graph = stream.end_capture()
    outside.wait_event(stream.record())  # what the warm-up used may be freed there
    if used:
        raise RuntimeError("graphed: the step draws random numbers (dropout?), and every replay "
                           "would draw the same: the host counts them. Call model.eval(), or set "
                           "dropout to 0")

    def replay():
        now = cupy.cuda.get_current_stream()
        stream.wait_event(now.record())
        graph.launch(stream)
        now.wait_event(stream.record())
        return result

    # what a replay reads and writes lives as long as it can be called; a table keeps its own pool
    replay.graph, replay.pool, replay.tables = graph, pool, tables
    return replay
