"""Divides a model that is too large for one rank over a grid of ranks (comm/grid.py).

    functions   has collectives inside the graph. Backward runs a collective on the gradient
    tensor      cuts the layers' matrices into columns and rows (tensor parallelism)
    overlapped  runs the all-reduces of tensor parallelism at the same time as matrix products
    vocabulary  computes embedding and cross entropy if each rank has some of the words
    parallelize converts a model to tensor parallelism by a plan
    schedule    computes the order in which a pipeline's stages work on the micro-batches
    pipeline    runs the stages of a pipeline in the order of a schedule
    cut         cuts a model into stages of equal cost
    split       runs backward in two parts: first the gradients of inputs, later the gradients of
                weights
    context     divides a text over ranks, by ring_attention or by ulysses
    text_parts  computes which rank has which tokens of a text
    experts     divides a mixture of experts: each rank has a few experts
    planner     finds out how to divide a GPT over N ranks. plan_text prints the result; plan_costs,
                plan_step and plan_network have the formulas
    grid_gpt    builds a GPT with pipeline stages, divided matrices, and replicas
"""
