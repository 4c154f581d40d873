"""`minidl.nn.utils`: gradient clipping, where PyTorch's programs look for it.

    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

The functions are in minidl/optim/clip.py, which has the formula.   Test: tests/optim/test_clip.py
"""

from minidl.optim.clip import clip_grad_norm_, clip_grad_value_

__all__ = ["clip_grad_norm_", "clip_grad_value_"]
