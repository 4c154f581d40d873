"""ZeRO: data parallelism in which each rank holds a part of what all would hold.

The plain forms: minidl/plain/zero.py and offload.py. Start there.

    zero     the optimizer's state in shards, one a rank; and the gradients
    zero3    ... and the weights
    absent   what a parameter holds while its elements are elsewhere
    offload  ... and the optimizer, with its work, on the host
    lanes    who is busy when: device, link, host
"""
