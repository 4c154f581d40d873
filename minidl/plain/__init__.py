"""The book: one page for each technique in its plainest form, in reading order.

A page is a short file, of 44 to 164 lines. It explains the idea, names the paper, and shows the
code. The code has no options and no error handling, and it is not made for speed. Each page ends
with an example that you can run:

    python -m minidl.plain.ring

The pages use only NumPy and earlier pages, and nothing else of minidl. (Examples with several ranks
also use minidl.comm.simulate, which runs all ranks in one process.) Each technique also has a real
file: the file of minidl that users of the library run. The real file must give the same bits as the
page, or a result within a stated bound. So each page is also a test. Read the page first. The real
file is harder to read, because it must be fast and safe. The last lines of the page say what the
real file adds.

One device

    autograd            derivatives of any program made of a few operations, and second derivatives
    training            a small network learns to classify: softmax, cross entropy, gradient descent
    optimizers          momentum, Adam, clipping by the norm, and a learning rate that changes
    attention           each token takes a weighted mean of its own value and earlier values
    transformer         a block of a Llama: RMSNorm, RoPE, attention, SwiGLU
    flash               attention block by block: the scores never exist all at once
    convolution         three ways to compute a convolution: loops, im2col, products without columns
    floats              why sums of floats differ: rounding, swamping, pairwise and Kahan's sums
    amp                 mixed precision: float16 weights, float32 masters, a loss scale
    recompute           keep only a segment's inputs, and run the segment again in backward
    memory              the memory of training: 16 bytes for each parameter, and the activations
    data                batches in random order, which a stopped run can continue
    prefetch            a thread loads the next batches while the step computes
    lengths             texts of unequal lengths: sorted into batches, or packed into rows
    tokens              byte pair encoding: learn, encode, decode
    sampling            the next token: temperature, top-k, top-p
    language_model      a whole model: it learns a short text, and writes a similar one

Many ranks. `t` is this rank's transport: t.rank, t.size, t.send(array, to), t.recv(array, source),
t.sendrecv(array, to, array2, source). recv writes the received numbers into `array`, sendrecv
into `array2`. Both return the array that they wrote. isend and irecv do not wait: they return a
request. request.wait() waits until the message is sent or received.

    naive               the obvious all-reduce: one rank adds, and sends the sum to all
    ring                all-reduce: every rank gets the sum, and no link is busier than another
    tree                broadcast, reduce and all-reduce in log2 n steps
    halving_doubling    all-reduce in 2 log2 n steps: a rank sends as many bytes as in the ring
    hierarchical        groups of ranks, and an all-reduce in which most bytes stay inside a node
    double_tree         all-reduce on two trees: a leaf of one tree is an inner rank of the other
    data_parallel       one model on all ranks, a part of the batch on each
    buckets             some gradients are sent while backward computes other gradients
    sync_batchnorm      batch norm with the mean and the variance of the whole batch
    large_batch         linear scaling, warm-up, LARS and LAMB
    local_sgd           ranks train by themselves, and average their weights every H steps; DiLoCo
    dgc                 send the largest elements of a gradient now, and other elements later
    powersgd            send a gradient matrix as the product of two thin matrices
    parameter_server    one rank has the weights, and workers send gradients to it
    zero                gradients, optimizer state and weights in blocks, one block on each rank
    offload             the host keeps the optimizer's state, and updates the weights
    pipeline            a part of the model on each rank: GPipe and 1F1B, each as a list of tasks
    tensor_parallel     a part of every matrix on each rank: columns, then rows
    grid                data, pipeline and tensor parallelism together, each in groups of ranks
    ring_attention      keys and values of a long text are sent around the ring of ranks
    ulysses             attention on a long text: each rank gets all tokens of some heads
    experts             many small networks on all ranks, and each token is sent to k of them
    elastic             a run that dies restarts from its last snapshot, and ends with the same bits
    buddy               each rank keeps a copy of its neighbour's state in memory
    shuffle             a new order in every epoch, divided among any number of ranks
    input               extract, transform, train: three stages that work at the same time
    numa                each rank runs on the cores that are near its memory
    stream              records that never end, each used exactly once, also after a crash
    late_labels         records wait a limited time for their labels, which come later
    rpc                 a function runs on another rank: a request and its answer

After training

    quantize            8-bit numbers instead of 32-bit numbers: scales, a zero point, integer sums
    compiler            a program becomes a list of lines, and neighbouring lines become one
    memory_plan         results that are not needed at the same time share memory
    kv_cache            text token by token: the keys and values of earlier tokens are kept
    profile             the time of each part of a step, and the least time that is possible

docs/book.md lists every page with its real file.
"""
