"""Programs that a student writes for PyTorch run on minidl: the imports alone are changed.

Each other file of this folder is such a program: a small model of a course, its data, 20 steps of
training, and a use of what was trained. Nothing in it knows this test. A program makes

    seed      of its NumPy generators. Data, noise and first weights come from them
    losses    a list of 20 floats
    result    what the trained model gives: text, choices, counts. Equal in both libraries

The test replaces `torch` by `minidl` in the lines at the top that import it (`IMPORTS`), and runs
the text. Without PyTorch it checks that the losses are finite and fall. With PyTorch it runs the
same text as it stands, and compares losses, weights and results.

To run one alone, with PyTorch: python tests/programs/char_gpt.py
To add one: write the file, and name it in `PROGRAMS`. Two things make a sound program red. A
parameter that it does not fill has other first values in each library: mind the biases. And a
parameter whose gradient is 0 but for roundings, such as a bias before a batch norm, goes its own
way under Adam: leave it out (bias=False), or compute in float64.
"""

import functools
import importlib.util
import math
import re
from pathlib import Path

import numpy as np
import pytest

import minidl
from tests.conftest import EVERY

FOLDER = Path(__file__).parent

# Both libraries compute in float32, and add in another order. One rounding is 6e-8 of a number. A
# sum of some hundred terms makes ten of them, and 20 steps hand them on.
LOSSES = 1e-5
# Adam divides each gradient by its own size. So the last digits of a gradient near 0 count as much
# as the first digits of a large one, and a few weights are further apart.
WEIGHTS = 1e-4

PROGRAMS = [
    "char_gpt", "name_mlp", "name_rnn", "name_gru", "llama", "digits_cnn", "vae", "dcgan",
    "word_lm", "actor_critic", "ddpm_unet", "graph_net", "tiny_nerf", "copy_transformer",
    "dqn", "resnet", "translate", "contrast",
    "flow", "skipgram", "vit", "forecast", "lbfgs_sine",
]

# What an import line of a program becomes. Only what has another home in minidl needs a row.
IMPORTS = [
    (r"^import torch$", "import minidl as torch"),
    (r"\btorch\.utils\.data\b", "minidl.data"),
    (r"\btorch\b(?! *$)", "minidl"),
]


def with_minidl(source):
    """Returns the text of a program with minidl in the place of PyTorch: in its imports alone."""
    return re.sub(r"^(?:import|from) torch\b.*$", lambda line: for_minidl(line[0]), source,
                  flags=re.MULTILINE)


def for_minidl(line):
    for pattern, ours in IMPORTS:
        line = re.sub(pattern, ours, line)
    return line


@functools.cache
def run(name, library, line="", wrong=""):
    """Returns the names that a program has made, run with "torch" or "minidl". `line` of its text
    becomes `wrong`."""
    path = FOLDER / f"{name}.py"
    source = path.read_text()
    assert not line or source.count(line) == 1
    source = source.replace(line, wrong) if line else source
    names = {"__name__": name}
    exec(compile(with_minidl(source) if library == "minidl" else source, path, "exec"), names)
    print(f"{name} with {library}: seed {names['seed']}, losses {names['losses']}")
    return names


def weights(names):
    """Returns {name: array} of the parameters and buffers of a program's modules, and of tensors in
    its list `parameters`."""
    found = {f"{variable}.{key}": tensor for variable, value in names.items()
             if hasattr(value, "named_parameters") and not isinstance(value, type)
             for key, tensor in value.state_dict().items()}
    listed = names.get("parameters", [])
    found |= {f"parameters[{i}]": tensor for i, tensor in enumerate(listed)}
    return {name: np.array(tensor.detach().numpy()) for name, tensor in found.items()}


def distance(ours, theirs):
    """Returns the length of the difference of two arrays or lists, as a part of their length."""
    ours, theirs = np.asarray(ours, float), np.asarray(theirs, float)
    assert ours.shape == theirs.shape
    return float(np.linalg.norm(ours - theirs) / max(np.linalg.norm(theirs), 1e-30))


def compare(name, ours, theirs):
    """AssertionError if two runs of a program differ."""
    our_weights, their_weights = weights(ours), weights(theirs)
    assert our_weights and list(our_weights) == list(their_weights)
    losses = distance(ours["losses"], theirs["losses"])
    apart = {key: distance(our_weights[key], their_weights[key]) for key in our_weights}
    print(f"{name}: losses {losses:.0e} apart, weights {max(apart.values()):.0e}")
    assert losses <= LOSSES, f"{name}, seed {ours['seed']}: losses {losses:.0e} apart"
    too_far = {key: d for key, d in apart.items() if not d <= WEIGHTS}
    assert not too_far, f"{name}, seed {ours['seed']}: weights apart: {too_far}"
    assert ours["result"] == theirs["result"], f"{name}, seed {ours['seed']}: another result"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_trains_on_minidl(name):
    if not EVERY and importlib.util.find_spec("torch"):
        pytest.skip("takes seconds: make test-every; it runs beside PyTorch below")
    names = run(name, "minidl")
    losses = names["losses"]
    assert names["torch"] is minidl
    assert len(losses) == 20 and all(type(loss) is float for loss in losses)
    assert all(map(math.isfinite, losses))
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_what_it_computes_on_pytorch(name):
    ours = run(name, "minidl")
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    torch.set_num_threads(1)
    theirs = run(name, "torch")
    compare(name, ours, theirs)


@pytest.mark.parametrize("name, line, wrong, words", [
    ("name_gru", "(1 - z) * hprev + z * hbar", "z * hprev + (1 - z) * hbar", "losses"),
    ("llama", "theta=10000.0", "theta=9000.0", "losses"),
    ("tiny_nerf", "rgb, depth, acc = render(model, *get", "model.out.bias += 1e-3\n"
     "    rgb, depth, acc = render(model, *get", "weights apart: {'model.out.bias'"),
    ("word_lm", ".div(0.7)", ".div(0.5)", "another result"),
], ids=["gate", "constant", "last step", "use"])
def test_one_wrong_line_is_seen(name, line, wrong, words):
    with pytest.raises(AssertionError, match=words):
        compare(name, run(name, "minidl", line, wrong), run(name, "minidl"))


def test_the_imports_alone_are_changed():
    for name in PROGRAMS:
        source = (FOLDER / f"{name}.py").read_text()
        before, after = source.splitlines(), with_minidl(source).splitlines()
        changed = [(b, a) for b, a in zip(before, after, strict=True) if a != b]
        assert changed and all(b.startswith(("import torch", "from torch")) for b, _ in changed)
        assert "import minidl as torch" in after
        assert max(i for i, (b, a) in enumerate(zip(before, after)) if a != b) < 20
