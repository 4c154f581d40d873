"""Finds how many samples a batch has. This number is the weight of a rank's gradient in the mean
over ranks.

    batch                    number of samples
    x                        for a Tensor or an array, the length of its first dimension
    {"ids": x, "mask": m}    for a dict or tuple, the common length of the first dimension of its
                             arrays. If the lengths differ, an error asks for n_samples=
    [image, image, image]    for any other value, an error asks for n_samples=

A layer with batch_first=False takes (tokens, samples, ...). Then the first dimension is not the
number of samples, so the call must pass n_samples=, too.

Test: tests/parallel/data/test_samples.py   Used by: data_parallel.py, parallel/model/pipeline.py
"""

from collections.abc import Mapping


def count(who, batch):
    """Returns the number of samples of a batch. who: the start of error messages. Raises TypeError
    if the batch does not show the number."""
    lengths = {len(x) for x in arrays(who, batch) if len(x.shape)}
    if len(lengths) != 1:
        got = f"lengths {' and '.join(map(str, sorted(lengths)))}" if lengths else "no arrays"
        raise TypeError(f"{who}: gradients are weighted by the number of samples; wanted a batch "
                        f"whose arrays all have the same first dimension; got {got}. Pass "
                        "n_samples=")
    return lengths.pop()


def arrays(who, batch):
    """Yields every array and Tensor of a batch, also inside nested dicts and tuples. None inside a
    dict or tuple is skipped. Raises TypeError for any other value."""
    if hasattr(batch, "shape") and hasattr(batch, "dtype"):
        yield batch
    elif isinstance(batch, (Mapping, tuple)):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            if part is not None:
                yield from arrays(who, part)
    else:
        raise TypeError(f"{who}: gradients are weighted by the number of samples in the batch. "
                        "This number is known only if the batch is a Tensor, an array, or a dict "
                        f"or tuple of Tensors and arrays; got a {type(batch).__name__}. Pass "
                        "n_samples=")


def tokens_first(module):
    """Returns the name of a layer in `module` whose input has the shape (tokens, samples, ...).
    Returns None if there is no such layer."""
    for name, layer in module.named_modules():
        if getattr(layer, "batch_first", True) is False:
            return name or type(layer).__name__
    return None
