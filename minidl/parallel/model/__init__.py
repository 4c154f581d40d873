"""Models too large for one rank: the model itself is divided over a grid of ranks (comm/grid.py).

    functions   collectives inside the graph, each with the collective of its gradient
    tensor      tensor parallelism: the layers' matrices cut into columns and rows
    overlapped  ... all-reduces that run at the same time as matrix products
    vocabulary  embedding and cross entropy; each rank has some of the words
    parallelize converts a model by a plan
    schedule    the order in which the stages of a pipeline work on its micro-batches
    pipeline    runs the stages of a pipeline in such an order
    cut         cuts a model into stages of equal cost
    split       backward in two parts: first the gradients of inputs, later those of weights
    context     a text in parts, by ring_attention or ulysses; text_parts: which rank has which
                tokens
    experts     mixture of experts, with a few experts on each rank
    planner     how to divide a GPT over N ranks; plan_text prints it, the formulas are in
                plan_costs, plan_step and plan_network
    grid_gpt    a GPT with stages, divided matrices, and replicas
"""
