"""Numbers with fewer bits.

    amp          mixed precision: each op runs in the precision that is right for it
    grad_scaler  a loss scale that keeps fp16 gradients in range
    loss_scale   the loss scale in a GPU's memory, so that the host does not wait
    bf16         bfloat16: held in two bytes, computed in float32
"""
