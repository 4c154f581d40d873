"""The parameter server: some ranks hold the weights, the others compute gradients.

    server   holds a part of the weights, and updates them with pushed gradients
    worker   pulls weights, pushes gradients
    rules    when a push is applied: synchronous, asynchronous, bounded staleness
    shards   which server holds which part
    table    an embedding whose rows are added and removed, for ids without limit
    tables   ... sharded over servers
    warm     ... started with the rows of a model trained offline
"""
