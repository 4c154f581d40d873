"""x[index] in a traced graph, in its plan, and in a file of ONNX, for random indices."""

import numpy as np
import pytest

import minidl
from minidl import infer
from tests.conftest import some
from tests.infer.onnx.files import has_peer, peer
from tests.ops.indices import SHAPES, counted, indices, written


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_graph_a_plan_and_a_file_pick_what_eager_does(shape):
    x, n_right, tried = counted(shape), 0, some(indices(shape), of=10)
    for index in tried:
        index = written(minidl, index)
        try:
            wanted = minidl.tensor(x)[index].numpy()
        except (IndexError, ValueError):
            continue
        graph = infer.trace(lambda x, index=index: x[index] * 1.0, minidl.tensor(x))
        file = infer.export_onnx(graph)
        found = [graph.run(x), infer.compile(graph)(x).numpy(), infer.import_onnx(file).run(x)]
        if has_peer():
            found += peer(file, {"x": x})
        for got in found:
            assert got.shape == wanted.shape and np.array_equal(got, wanted), index
        n_right += 1
    assert n_right > len(tried) / 2


def test_a_list_along_one_dimension_is_one_gather():
    x = counted((3, 4, 2))
    for index in ([0, 2], (slice(None), [0, 2]), (..., [1, 0])):
        file = infer.export_onnx(infer.trace(lambda x, i=index: x[i], minidl.tensor(x)))
        assert [node.op_type for node in file.graph.node] == ["Gather", "Identity"]
        np.testing.assert_array_equal(infer.import_onnx(file).run(x), x[index])
