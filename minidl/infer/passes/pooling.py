"""A convolution whose result is only pooled, 2 x 2 pixels to the largest, writes what is pooled.

    %1 = conv_nhwc(%0, w, b) then relu(.)
    %2 = max_pool_nhwc(%1)                    %2 = conv_nhwc(%0, w, b) then relu(.)
                                                                       then max_pool_nhwc(.)

The four pixels are there one after the other (a tile of Winograd's is such a window), and a quarter
of the image is written, once, where all of it was written and read again. The pooling is the last
step, and the only one that is not on single elements.   Test: tests/infer/passes/test_pooling.py
"""

from minidl.infer.graph import Step
from minidl.infer.passes.layout import NONE

WINDOW = dict(kernel=(2, 2), stride=(2, 2), padding=NONE, ceil_mode=False)


def pooling(graph):
    """How many poolings are steps of a convolution now."""
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
