"""PyTorch's own samples, one of each op in float64 with gradients: none wrong. `make test-every`
runs two of each in seven dtypes; `make opinfo` runs all of them, and prints a table."""

import pytest

pytest.importorskip("torch", reason="PyTorch's samples")

import minidl  # noqa: E402
from tests.conftest import EVERY  # noqa: E402
from tests.ops import opinfo  # noqa: E402, its import of PyTorch's list is for the tests

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.timeout(300)  # ten seconds alone, more where others compute
def test_no_sample_is_wrong_and_nearly_all_run():
    dtypes = opinfo.DTYPES if EVERY else ["float64"]
    table = opinfo.campaign(opinfo.provided(), dtypes, limit=2 if EVERY else 1)
    wrong = {name: dict(counts) for name, counts in table.items() if counts["wrong"]}
    assert not wrong
    n_right, n_refused = (sum(c[k] for c in table.values()) for k in ("right", "refused"))
    assert len(table) > 200 and n_right >= 0.97 * (n_right + n_refused), "\n".join(
        opinfo.rows(table))


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d"])
def test_convolutions_on_a_gpu(name):
    def move(x, device):
        return x.to(device) if isinstance(x, minidl.Tensor) else x

    def on_gpu(*args, **options):
        options = {key: move(x, "cuda") for key, x in options.items()}
        return function(*(move(x, "cuda") for x in args), **options).to("cpu")

    full_name = f"nn.functional.{name}"
    function = opinfo.ours(full_name)
    ops = [(op, on_gpu) for op in opinfo.op_db() if op.name == full_name]
    (counts,) = opinfo.campaign(ops, ["float64", "float32", "float16"],
                                limit=None if EVERY else 4).values()
    assert counts["right"] >= 12 and not counts["wrong"] and not counts["refused"]


@pytest.mark.parametrize("spoil", ["value", "dtype", "shape", "gradient"])
def test_a_wrong_op_is_found(spoil):
    """The negative control: an op that is wrong in one respect."""
    def wrong(x, *args, **options):
        y = minidl.exp(x, *args, **options)
        return {"value": lambda: y + 1e-6, "dtype": lambda: y.float(),
                "shape": lambda: y.unsqueeze(0), "gradient": lambda: y + (x - x.detach())}[spoil]()

    (op,) = [op for op in opinfo.op_db() if op.name == "exp"]
    (counts,) = opinfo.campaign([(op, wrong)], ["float64"]).values()
    assert counts["wrong"] >= 2 and not counts["refused"]  # of three, one without elements
