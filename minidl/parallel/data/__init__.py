"""Data parallelism: every rank has the same model, and trains the model on a part of the batch.

    join           trains ranks with unequal numbers of batches, and evaluates a model over all
                   ranks
    data_parallel  averages gradients while backward runs
    bucket         groups gradients that are sent together
    samples        finds the number of samples of a batch
    compress       has the common class of methods that compress gradients, and a method that rounds
                   gradients with error feedback
    dgc            sends the largest elements of a gradient now, and the rest later
    powersgd       sends two thin matrices for a gradient
    onebit_adam    sends Adam's momentum with one bit for each element
    sync_batchnorm computes batch norm over the samples of all ranks
    local_sgd      averages the weights every H steps
    straggler      averages the weights without waiting for slow ranks
    diloco         uses the mean movement of the weights as the gradient of an outer optimizer
    noise_scale    measures up to which size a larger batch helps
    flat           copies many arrays into one buffer, and cuts the buffer into parts for ranks
    header         makes the message that is sent before the gradients. It tells how many samples a
                   rank has, and which parameters it used
    codecs         has kernels that convert gradients into float16 and int8 payloads, and back
    topk_mask      finds the largest elements of a vector, as (index, value) pairs
"""
