"""Data parallelism: every rank has the same model, and trains it on its part of the batch.

    join           unequal numbers of batches; evaluation
    data_parallel  gradients averaged while backward runs
    bucket         gradients that are sent together
    compress       gradients in fewer bytes: the common class, and rounding with error feedback
    dgc            ... the largest elements now, the rest later
    powersgd       ... two thin matrices for a gradient
    onebit_adam    ... Adam's momentum, one bit an element
    sync_batchnorm batch norm over the batch of all ranks
    local_sgd      weights averaged every H steps
    straggler      ... without the slow ranks
    diloco         ... and the mean movement of the weights as the gradient of an outer optimizer
    noise_scale    how large a batch helps
    flat           many arrays as one buffer, and its partition over ranks
    header         sent before the gradients: how many samples a rank has, and which parameters it
                   used
    codecs         float16 and int8 payloads by kernels
    topk_mask      the largest elements of a vector, as (index, value) pairs
"""
