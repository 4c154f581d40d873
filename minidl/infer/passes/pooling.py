"""Folds a max pooling of 2 x 2 pixels into the convolution before it.

    %1 = conv_nhwc(%0, w, b) then relu(.)
    %2 = max_pool_nhwc(%1)                    %2 = conv_nhwc(%0, w, b) then relu(.)
                                                                       then max_pool_nhwc(.)

The convolution computes the four pixels of a window one after the other. (A tile of Winograd's
algorithm is such a window.) The convolution writes only the largest of the four pixels, so it
writes a quarter of the bytes. Without this pass, the convolution writes the whole image, and the
pooling reads the image again. The pooling is the last step. All other steps work on single
elements.   Test: tests/infer/passes/test_pooling.py
"""

from minidl.infer.graph import Step
from minidl.infer.passes.layout import NONE

WINDOW = dict(kernel=(2, 2), stride=(2, 2), padding=NONE, ceil_mode=False)


def pooling(graph):
    """Turns poolings into steps of the convolution before them. Returns how many."""
    users, producers, n = graph.users(), graph.producers(), 0
    for node in [node for node in graph.nodes if node.op == "max_pool_nhwc"]:
        image, = node.inputs
        product = producers.get(image)
        if product is None or product.op != "conv_nhwc" or product.pad:
            continue
        if len(users[image]) > 1 or image in graph.outputs:
            continue
        if any(node.attributes[k] != v for k, v in WINDOW.items()):
            continue
        own = ("v", len(product.steps) - 1),
        product.steps += Step(node.op, node.kind, own, node.attributes),
        product.outputs, product.pad = node.outputs, node.pad
        graph.nodes.remove(node)
        n += 1
    return n
