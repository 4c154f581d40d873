"""Data parallelism: the same model on every rank, each on its part of the batch.

    join           unequal numbers of batches; evaluation
    data_parallel  naive, then the real one: gradients averaged while backward runs
    bucket         gradients that are sent together
    flat           many arrays as one buffer, and its partition over ranks
"""
