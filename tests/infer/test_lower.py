"""Launches: every kind of line by its kernel, equal to eager ops, also with poisoned bytes."""

import numpy as np
import pytest

import minidl
from minidl import infer, nn
from minidl.nn import functional as F
from tests.conftest import EVERY
from tests.infer.models import array, cnn, random_model, same


def compiled(model, x, optimise=True, **options):
    """The Plan, run and compared; its bytes are poisoned as soon as they are free."""
    graph = infer.trace(model, x)
    if optimise:
        infer.optimise(graph)
    plan = infer.compile(graph, poison=True, **options)
    with minidl.no_grad():
        want = model(x)
    for _ in range(2):  # what is left from the first run must not matter
        same(plan(x), want)
    return plan


def eager_lines(plan):
    return [launch.op for launch in plan.launches if launch.eager]


@pytest.mark.parametrize("m, widths", [(1, (33, 70, 10)), (5, (7, 64, 65)), (31, (3, 130, 1))])
def test_linear_layers_of_all_remainders(m, widths):
    """Few rows and many, tiles with a rest, panels of 64, 48, 16 and 1; depths of 3 to 130."""
    minidl.manual_seed(0)
    net = nn.MLP(*widths, activation=nn.Tanh).eval()
    plan = compiled(net, minidl.tensor(array(m, widths[0])))
    assert not eager_lines(plan) and len(plan.launches) == 2


def test_a_network_of_images():
    plan = compiled(cnn(), minidl.tensor(array(2, 3, 12, 13)))
    assert not eager_lines(plan)


def test_a_gpt():
    minidl.manual_seed(0)
    ids = np.random.default_rng(0).integers(0, 30, (2, 70))
    plan = compiled(nn.GPT(30, 80, n_layers=2, n_heads=2, width=32).eval(), ids)
    assert not eager_lines(plan)
    with pytest.raises(IndexError, match="from 0 to 30 in input x, but the embedding has rows 0"):
        plan(np.where(np.arange(70) < 69, ids * 0, 30))


@pytest.mark.parametrize("seeds", [range(3), range(3, 6)])
def test_random_graphs_by_kernels(seeds):
    """Optimised and not, the plan is the model; views, copies and broadcasts are among them."""
    for seed in seeds:
        x = minidl.tensor(array(2, 3, 8, seed=seed))
        compiled(random_model(seed), x)
        compiled(random_model(seed, 4), x, optimise=False)


def test_random_graphs_optimised_equal_unoptimised():
    """60 of them by eager ops: what a pass breaks shows here, with the graph before and after."""
    rewrites = {}
    for seed in range(60):
        model, x = random_model(seed, 14), minidl.tensor(array(2, 3, 8, seed=seed))
        graph = infer.trace(model, x)
        want, text = graph.run(x.array), str(graph)
        for name, n in infer.optimise(graph).items():
            rewrites[name] = rewrites.get(name, 0) + n
        try:
            same(graph.run(x.array), want)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}\n{text}\n{graph}\n{error}") from None
    assert all(rewrites[name] for name in ("algebra", "common", "epilogue", "chain", "dead"))


def test_views_are_no_launches():
    plan = compiled(lambda x: x.permute(1, 0, 2).reshape(3, 2, 2, 4)[:, 1].exp(),
                    minidl.tensor(array(2, 3, 8)))
    assert [launch.op for launch in plan.launches] == ["chain"]


def test_what_has_no_kernel_is_eager_and_named():
    plan = compiled(lambda x: (x.cos() + 1.0).cumsum(-1).relu(), minidl.tensor(array(2, 3)))
    assert eager_lines(plan) == ["cos", "cumsum"]
    assert "eager cos" in str(plan) and "kernel chain_1" in str(plan)


def test_a_line_without_a_word_that_its_kernel_wants_is_named():
    """What a pass or an import of one's own may leave out."""
    graph = infer.trace(lambda x: F.softmax(x, -1), minidl.tensor(array(3, 8)))
    del graph.nodes[0].attributes["dim"]
    with pytest.raises(ValueError, match=r"lower: line softmax: its kernel wants 'dim'; got the "
                                         r"attributes \['dtype'\] and the steps \[\]. Give the"):
        infer.compile(graph)


def test_softmax_norms_and_numbers_that_are_not_finite():
    x = array(3, 8)
    x[0, :3] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        compiled(lambda x: F.relu(x * 2.0), minidl.tensor(x))
        compiled(lambda x: minidl.maximum(x, 0.5 * x), minidl.tensor(x))
    compiled(lambda x: F.log_softmax(F.rms_norm(x, (8,), minidl.ones(8)), -1),
             minidl.tensor(array(3, 8)))


def test_rows_beyond_a_block_are_computed():
    """A block of threads has 256 rows."""
    x = minidl.tensor(array(257, 3))
    for model in (lambda x: F.softmax(x, -1), lambda x: F.layer_norm(x, (3,))):
        assert not eager_lines(compiled(model, x))


def test_an_embedding_of_computed_indices_is_eager():
    """The plan checks the indices of its input before it starts. It cannot check others."""
    table = minidl.Tensor(array(9, 4))
    plan = compiled(lambda ids: F.embedding(minidl.flip(ids, 0), table),
                    minidl.tensor(np.arange(6).reshape(2, 3)))
    assert "embedding" in eager_lines(plan)


def test_constants_may_lie_in_any_order():
    across, number = minidl.Tensor(array(4, 3).T), minidl.Tensor(np.array(2, np.float32))
    compiled(lambda x: (x + across) / (number + x * x), minidl.tensor(array(3, 4)))
    compiled(lambda x: F.linear(x, across), minidl.tensor(array(5, 4)))
    compiled(lambda x: number * x, minidl.Tensor(np.array(3, np.float32)))


def test_after_a_product_an_operand_of_any_shape_is_broadcast():
    """A product adds an operand of its own shape or a row itself, and no other."""
    weight = minidl.Tensor(array(3, 5))
    for shape in ((4, 3, 3), (3,), (1, 3), (3, 3), (3, 1), (4, 1, 3), (4, 3, 1), (1,)):
        w = minidl.Tensor(array(*shape, seed=1))
        compiled(lambda x, w=w: F.linear(x, weight) + w, minidl.tensor(array(4, 3, 5)))


def test_a_batch_of_nothing_and_other_dtypes_are_eager():
    conv = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    with minidl.no_grad():
        assert compiled(lambda x: conv(x) + 1.0, minidl.tensor(array(0, 3, 5, 5))).launches
    double = minidl.tensor(array(4, 3).astype(np.float64))
    plan = compiled(lambda x: F.linear(x, double).relu(), minidl.tensor(
        array(2, 3).astype(np.float64)))
    assert eager_lines(plan) == ["linear", "relu"]


def test_lines_of_the_same_shape_share_a_kernel():
    minidl.manual_seed(0)
    plan = compiled(nn.MLP(8, 8, 8, 8, 8).eval(), minidl.tensor(array(2, 8)))
    names = [line.split("kernel ")[1].split()[0] for line in str(plan).splitlines()[:-1]]
    assert names == ["linear_0"] * 3 + ["linear_3"]
    assert "then" not in plan.source("linear_3") and "v0 = (x < 0.0f" in plan.source("linear_0")
    with pytest.raises(KeyError, match="kernels are linear_0, linear_3"):
        plan.source("linear_1")


def test_threads_change_no_bit():
    minidl.manual_seed(0)
    net, x = nn.MLP(200, 300, 100).eval(), minidl.tensor(array(150, 200))
    graph = infer.trace(net, x)
    infer.optimise(graph)
    one, two = (infer.compile(graph, threads=n)(x).array for n in (1, 2))
    np.testing.assert_array_equal(one, two)


CONVOLUTIONS = [(16, 70, 6, 7, 1), (16, 70, 40, 7, 1), (32, 16, 1, 9, 1), (48, 130, 5, 5, 0),
                (16, 64, 30, 3, 2)]


@pytest.mark.parametrize("c, o, h, w, padding", CONVOLUTIONS if EVERY else CONVOLUTIONS[:2])
def test_a_convolution_of_many_channels_by_winograd(c, o, h, w, padding):
    """Tiles that end beyond the image, groups that end beyond the tiles, panels with a rest, a
    border for the line after it, and a residual; a block for each panel, and for all of them."""
    minidl.manual_seed(0)
    a, b = nn.Conv2d(c, o, 3, padding=padding), nn.Conv2d(o, 3, 3, padding=1)
    plan = compiled(lambda x: b(F.relu(a(x)) + 1.0), minidl.tensor(array(2, c, h, w)))
    assert "winograd<" in plan.source("conv_nhwc_1") and not eager_lines(plan)
