"""ZeRO: data parallelism in which each rank holds only a part of the training state.

The plain forms: minidl/plain/zero.py and offload.py. Start there.

    zero     each rank has a shard of the optimizer's state, and of the gradients
    zero3    ... and of the weights
    absent   placeholders in a parameter whose elements are on other ranks
    offload  the optimizer's state and its work on the host
    lanes    when device, link and host are busy
"""
