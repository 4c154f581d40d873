"""The book: every technique in its plainest form, one page each, in the order to read them.

A page is a file of some 30 to 80 lines. It says the idea, names the paper, and shows the code: no
options, no error handling, nothing for speed. Each page ends with an example that you can run:

    python -m minidl.plain.ring

The pages use NumPy and earlier pages, and nothing else of minidl. So each page is also a test: the
real file must give the same bits, or a result within a stated bound. Read the page first. Then the
real file may be as hard as speed and safety demand; the last lines of the page say what it adds.

One device

    autograd            derivatives of any program made of a few operations, and theirs again
    training            a small network learns to classify: softmax, cross entropy, gradient descent
    optimizers          momentum, Adam, clipping by the norm, and a learning rate that changes
    attention           each token takes a weighted mean of what earlier tokens say
    transformer         a block of a Llama: RMSNorm, RoPE, attention, SwiGLU
    flash               attention block by block: the scores never exist all at once
    convolution         three forms of one result: loops, im2col, products without columns
    floats              why sums of floats differ: rounding, swamping, pairwise and Kahan's sums
    amp                 mixed precision: float16 weights, float32 masters, a loss scale
    recompute           keep a segment's inputs alone, and run it again in backward
    memory              16 bytes a parameter, and the activations: formulas beside counts
    data                batches in a random order that can be made again, from any place on
    prefetch            a thread loads the next batches while the step computes
    lengths             texts of unequal lengths: sorted into batches, or packed into rows
    tokens              byte pair encoding: learn, encode, decode
    sampling            the next token: temperature, top-k, top-p

Many ranks. `t` is this rank's transport: t.rank, t.size, t.send(array, to), t.recv(array, source),
t.sendrecv(array, to, array2, source), and isend and irecv, which return a request to wait() for.

    naive               all-reduce the obvious way: one rank adds, and sends the sum to all
    ring                all-reduce: everybody gets the sum, and no link is busier than another
    tree                broadcast, reduce and all-reduce in log2 n steps
    halving_doubling    all-reduce with the bytes of the ring in 2 log2 n steps
    hierarchical        all-reduce by nodes: most bytes stay inside a node; groups of ranks
    double_tree         all-reduce on two trees, the leaves of one are inner ranks of the other
    data_parallel       one model on all ranks, a part of the batch on each
    buckets             gradients are sent in groups while backward computes the others
    sync_batchnorm      batch norm with the mean and the variance of the whole batch
    large_batch         linear scaling, warm-up, LARS and LAMB
    local_sgd           ranks train alone and average every H steps; DiLoCo
    dgc                 the largest elements of a gradient now, the others later
    powersgd            a gradient matrix as the product of two thin ones
    parameter_server    one rank has the weights, workers send it gradients
    zero                gradients, optimizer state and weights in blocks, one a rank
    offload             the optimizer's state and work on the host
    pipeline            a part of the model on each rank: GPipe and 1F1B, each as a list
    tensor_parallel     a part of every matrix on each rank: columns, then rows
    grid                all three at once: a rank's place along each axis, and its groups
    ring_attention      keys and values of a long text travel around the ring of ranks
    ulysses             the same text: tokens of all heads are exchanged for heads of all tokens
    experts             many small networks, a token goes to k of them, wherever they are
    elastic             a run that dies goes on from its last snapshot, to the same bits
    buddy               each rank's state in the memory of a second rank, too
    shuffle             an order for every epoch, dealt to any number of ranks without a message
    input               extract, transform, load: stages that work at the same time
    numa                which cores a rank runs on, so that its memory is near
    stream              records that never end, each used exactly once, also after a crash
    late_labels         records wait for labels that come later, in a window of time
    rpc                 a function runs on another rank: a request and its answer

After training

    quantize            numbers of 8 bits in place of 32: scales, a zero point, whole sums
    compiler            a program as a list of lines, and neighbours fused into one
    memory_plan         results that are not needed at the same time share memory
    kv_cache            text token by token, with the keys and values of earlier tokens kept
    profile             where the time goes: spans that add up, and the least time possible

docs/book.md shows every page beside the real one.
"""
