"""`minidl.nn.functional`: the ops that layers are made of, by PyTorch's names.

All of them are in the operator table, minidl/ops/__init__.py. Those below have a fused kernel, too,
which runs where it can (minidl/fused/dispatch.py): less memory traffic, fewer activations saved.
`with minidl.use_fused(False):` goes back to the plain ops.   Test: tests/nn/test_functional.py
"""

from minidl import ops
from minidl.fused import attention as fused_attention
from minidl.fused import bias_gelu
from minidl.fused import cross_entropy as fused_cross_entropy
from minidl.fused import dropout_add, embedding_grad
from minidl.fused import layer_norm as fused_layer_norm
from minidl.fused import linear as fused_linear
from minidl.fused import rms_norm as fused_rms_norm
from minidl.fused import softmax as fused_softmax
from minidl.fused.dispatch import either

globals().update(ops.namespace("f"))

gelu = either(bias_gelu.gelu, ops.activations.gelu)
dropout = either(dropout_add.dropout, ops.dropout.dropout)
embedding = either(embedding_grad.embedding, ops.embedding.embedding)
linear = either(fused_linear.linear, ops.matmul.linear, fused_linear.accepts)
layer_norm = either(fused_layer_norm.layer_norm, ops.norm.layer_norm, fused_layer_norm.accepts)
rms_norm = either(fused_rms_norm.rms_norm, ops.norm.rms_norm, fused_rms_norm.accepts)
softmax = either(fused_softmax.softmax, ops.softmax.softmax, fused_softmax.accepts)
cross_entropy = either(fused_cross_entropy.cross_entropy, ops.cross_entropy.cross_entropy,
                       fused_cross_entropy.accepts)
scaled_dot_product_attention = either(fused_attention.scaled_dot_product_attention,
                                      ops.attention.scaled_dot_product_attention,
                                      fused_attention.accepts)
self_attention = either(fused_attention.self_attention, ops.attention.self_attention,
                        fused_attention.accepts_self)
log_softmax = either(fused_softmax.log_softmax, ops.softmax.log_softmax, fused_softmax.accepts)


def __getattr__(name):
    raise AttributeError(f"minidl.nn.functional has no {name!r}; it has: "
                         + " ".join(sorted(ops.namespace("f"))))
