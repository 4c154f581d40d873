"""Models larger than a rank: the model itself is divided, one axis a file, on a grid of ranks
(comm/grid.py).

    functions   collectives inside the graph: each with its gradient's collective
    tensor      tensor parallelism: the layers' matrices cut into columns and rows
    overlapped  ... their all-reduces beside their products
    vocabulary  embedding and cross entropy of which each rank has some words
    parallelize a model converted by a plan
    schedule    the order in which the stages of a pipeline work on its micro-batches
    pipeline    the stages of a pipeline, run in such an order
    cut         a model into stages, of equal cost
    split       backward in two parts: first the gradients of inputs, later those of weights
    context     a text in parts, by ring_attention or ulysses; text_parts: who has which tokens
    experts     mixture of experts, each rank with a few of them
    planner     how to divide a GPT over so many ranks: in plan_text's words; the formulas
                are in plan_costs, plan_step and plan_network
    grid_gpt    a GPT in stages, their matrices in parts, all of it in replicas
"""
