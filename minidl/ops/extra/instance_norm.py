"""Instance norm: normalises each channel of each sample separately.

Without running averages it is a group norm with one group for each channel. With running averages
it is a batch norm of one sample with N C channels. Each running average is then the mean over the N
samples.
Source: Ulyanov et al. 2016.     Test: tests/ops/test_every_op.py (rows in samples_extra.py)
"""

from minidl.mode import current
from minidl.ops.batch_norm import batch_norm
from minidl.ops.norm import group_norm
from minidl.tensor import Tensor


def instance_norm(input, running_mean=None, running_var=None, weight=None, bias=None,
                  use_input_stats=True, momentum=0.1, eps=1e-5):
    """Normalises each channel of each sample of input (N, C, ...) to mean 0 and variance 1, then
    multiplies by weight and adds bias. If running_mean and running_var are given, they are updated
    as in batch_norm.
    use_input_stats=False: uses running_mean and running_var in place of the statistics of the
    input, and does not update them."""
    if input.ndim < 3 or use_input_stats and input.shape[2:] and not any(
            n > 1 for n in input.shape[2:]):
        raise ValueError(f"instance_norm: input of shape {tuple(input.shape)}; want (N, C, ...), "
                         "with more than one element for each channel")
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    N, C = input.shape[:2]
    if running_mean is None:
        return group_norm(input, C, weight, bias, eps)
    running = [Tensor(input._xp.tile(v.array, N)) for v in (running_mean, running_var)]
    y = batch_norm(input.reshape(1, N * C, *input.shape[2:]), *running, None, None, True, momentum,
                   eps).reshape(input.shape)
    if not current().replaying:
        for v, wide in zip((running_mean, running_var), running, strict=True):
            v.array[...] = wide.array.reshape(N, C).mean(axis=0)
            v.version += 1
    column = (1, C, *[1] * (input.ndim - 2))
    y = y if weight is None else y * weight.reshape(column)
    return y if bias is None else y + bias.reshape(column)
