"""PyTorch's `torch.nn.utils.rnn`: sequences of different lengths as one batch.

Test: tests/nn/test_utils.py
"""

from minidl.ops.extra.rearrange import pad
from minidl.ops.shape import stack


def pad_sequence(sequences, batch_first=False, padding_value=0.0):
    """Returns n sequences (length_i, ...) as one tensor (longest, n, ...), or (n, longest, ...)
    with batch_first. The ends of shorter sequences are filled with `padding_value`."""
    longest = max(len(x) for x in sequences)
    # The zeros for the other dimensions come first, because pad() begins at the last dimension.
    n_others = 2 * (sequences[0].ndim - 1)
    padded = [pad(x, (*[0] * n_others, 0, longest - len(x)), value=padding_value)
              for x in sequences]
    return stack(padded, 0 if batch_first else 1)
