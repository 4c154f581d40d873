"""More ops, with PyTorch's names. They are used less often than the ops in minidl/ops.

    sort.py        sort argsort topk kthvalue median    einsum.py      einsum
    search.py      unique searchsorted bincount ...     distance.py    norm normalize ...
    scatter.py     scatter scatter_add index_add ...    sampling.py    bernoulli multinomial
    rearrange.py   roll diagonal meshgrid ...           interpolate.py images of another size
    unary.py       erf log1p tan ...                    conv_transpose.py, recurrent.py,
    activations.py mish prelu selu glu                  embedding_bag.py, instance_norm.py
    in_place_forms.py x.add_(y) ...                     composed.py    mm diff movedim hardswish ...
                                                        columns.py     unfold fold
    quantize.py    numbers in 8 bits                    int8_linear.py a linear layer in 8 bits

docs/from_pytorch.md lists PyTorch's names that are not here, and how to do without them. The ops
are in the table of all ops, minidl/ops/__init__.py. Tests: tests/ops/extra/
"""
