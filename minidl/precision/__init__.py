"""Numbers of fewer bits.

    amp          mixed precision: each op in the precision that suits it
    grad_scaler  a loss scale that keeps fp16 gradients in range
    loss_scale   ... on a GPU, for which nobody waits
    bf16         bfloat16: held in two bytes, computed in float32
"""
