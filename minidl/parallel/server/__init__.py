"""The parameter server: some ranks hold the weights, and the other ranks compute gradients.

    server   holds a part of the weights, and updates them with pushed gradients
    worker   pulls weights and pushes gradients
    rules    decide when a push is applied: synchronous, asynchronous, or with bounded staleness
    shards   computes which server holds which part of the weights
    table    stores an embedding whose rows are added and removed, for any number of ids
    tables   divides the rows of tables over servers
    warm     starts tables with the rows of a model that was trained offline
"""
