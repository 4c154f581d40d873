"""ZeRO: data parallelism in which each rank holds only a part of the training state.

The plain forms: minidl/plain/zero.py and offload.py. Start there.

    zero     stages 1 and 2: each rank has a shard of the optimizer's state, and of the gradients
    zero3    stage 3: the weights, too, are divided into shards
    absent   has placeholders for weights and gradients whose elements are in the ranks' shards
    offload  keeps the optimizer's state on the host. The host also updates the weights
    lanes    has queues for the jobs of device, link and host, and records when these are busy
"""
