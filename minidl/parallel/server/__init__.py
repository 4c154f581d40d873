"""The parameter server: some ranks hold the weights, the others compute gradients.

    server   holds a part of the weights and applies what is pushed
    worker   pulls weights, pushes gradients
    rules    when a push is applied: synchronous, asynchronous, bounded staleness
    shards   which server holds which part
    table    rows that come and go: an embedding of ids without end
    tables   ... sharded over servers
    warm     ... taken over from a model trained offline
"""
