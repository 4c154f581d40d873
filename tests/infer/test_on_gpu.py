"""Plans run on the CPU: what lies on a GPU is refused, with the way to replay it there."""

import numpy as np
import pytest

import minidl
from minidl import infer, nn
from minidl.cuda.cuda_graph import graphed
from tests.cuda.test_cuda_graph import capturing  # noqa: F401  a fixture
from tests.devices import put

pytestmark = pytest.mark.gpu
X = np.ones((2, 4), np.float32)


def model():
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).eval()


def gpt():
    return nn.GPT(11, 16, 1, 2, 8).eval()


@pytest.mark.parametrize("call", [
    lambda: infer.trace(model().to("cuda"), X),
    lambda: infer.trace(model(), put(X, "cuda")),
    lambda: infer.compile(infer.trace(model(), X))(minidl.tensor(X, device="cuda")),
    lambda: infer.decoder(gpt().to("cuda")),
    lambda: infer.decoder(gpt()).prefill(put(np.array([[1, 2]]), "cuda")),
    lambda: infer.decoder(gpt()).generate(put(np.array([[1, 2]]), "cuda"), 3)],
    ids=["model", "input", "plan", "decoder", "prompt", "generate"])
def test_what_is_on_a_gpu_is_refused_with_the_remedy(call):
    with pytest.raises(TypeError, match=r"on the CPU.*got arrays on a GPU.*\.cpu\(\).*graphed"):
        call()


def test_the_remedy_is_captured(capturing):  # noqa: F811
    """No wait and no upload in a forward: all that a CUDA graph asks."""
    import cupy

    net, x = gpt().to("cuda"), minidl.tensor(np.ones((2, 8), np.int64), device="cuda")
    with minidl.no_grad():
        replay = graphed(lambda: net(x), warm_up=2)
        assert replay().shape == (2, 8, 11) and capturing == ["begin", "end", "launch"]
        with cupy.stand_in.counting() as count:
            net(x)
    assert not count.waits and not count.uploads
