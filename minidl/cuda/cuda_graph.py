"""Runs a training step as one launch: CUDA graphs.

    step = minidl.graphed(step)      runs the step a few times, then captures its launches
    loss = step()                    repeats some hundred launches, in the time of one launch

A step of a small model launches hundreds of kernels. A kernel runs for a few microseconds, and
Python needs longer to launch it. In a captured step the host may only launch kernels. It must not
wait or upload data, and it must pass the same numbers and the same addresses each time. So copy
each batch into the same tensors (`x.copy_(batch)`). Return the loss and do not read it. Keep the
learning rate fixed. Use no dropout, because the host counts the random draws of dropout. AdamW's
step count and the loss scale may change, because they are on the device.

The graph has a memory pool of its own. No other code gets memory from this pool, so the graph's
tensors keep their addresses. Each replay writes its results into the tensors that `step` returned
at the capture.
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
    """Returns a function that replays the GPU work of `step()`. Each call of the returned function
    gives the tensors that `step` returned at the capture, with new values.

    warm_up: how many times `step` runs before the capture, to fill the memory pool and to compile
             kernels. These are real steps: they change the parameters.
    Raises RuntimeError if the step draws random numbers, because all replays draw the same
    numbers."""
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
    outside.wait_event(stream.record())  # `outside` may reuse memory of the warm-up
    if used:
        raise RuntimeError("graphed: the step draws random numbers (dropout?). The host counts the "
                           "draws, so every replay would draw the same numbers. Call model.eval(), "
                           "or set dropout to 0")

    def replay():
        now = cupy.cuda.get_current_stream()
        stream.wait_event(now.record())
        graph.launch(stream)
        now.wait_event(stream.record())
        return result

    # `replay` uses the memory of these objects, so the attributes of `replay` keep the objects
    # alive. Each table of addresses keeps its own pool alive.
    replay.graph, replay.pool, replay.tables = graph, pool, tables
    return replay
