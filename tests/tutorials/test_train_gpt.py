"""train_gpt trains with every technique switched on, says what it held and sent, and goes on."""

import importlib.util
import json
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from minidl.comm import simulate
from minidl.comm.transport.scheduler import RankFailed
from minidl.course import table
from minidl.course.exercise import ROOT
from minidl.memory.predict import predict
from minidl.snapshot import durable, snapshot
from tests.conftest import some
from tests.register import DEMO, SHOWN

SCRIPT = ROOT / "tutorials" / "train_gpt.py"
SMALL = {"steps": 3, "batch": 4, "context": 8, "layers": 2, "width": 16, "heads": 2, "sample": 4,
         "vocabulary": 300}
# the scale finds its place: the first gradients overflow
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")


@pytest.fixture
def script(monkeypatch):
    """The tutorial as a module."""
    spec = importlib.util.spec_from_file_location("train_gpt", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "train_gpt", module)
    spec.loader.exec_module(module)
    return module


def options_of(script, **options):
    defaults = {name: default for name, (default, _) in script.OPTIONS.items()}
    return SimpleNamespace(**defaults | {"device": "cpu"} | options)


@pytest.fixture
def train(script, monkeypatch, tmp_path, capsys):
    """A function that trains on simulated ranks in a new folder, without the picture; returns what
    was printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(script, "picture", lambda *_: None)

    def train(n_ranks=2, **options):
        args = options_of(script, **SMALL | options)
        assert not any(simulate(n_ranks, lambda t: script.main(t, args).finish()))
        return capsys.readouterr().out

    return train


def test_the_recorded_run_of_the_readme_has_the_bytes_of_the_formulas(script):
    """docs/train_gpt.json, from which `make register` writes README.md."""
    args = options_of(script)

    def formulas(t):
        ours = script.on_ranks(t, args)
        ours.parallel.close()
        return sum(ours.bytes_sent(None).values()), predict(ours.n_params, world=t.size)["total"]

    record = {row.quantity: row for row in table.load(ROOT / DEMO)}
    for quantity, wanted in zip(SHOWN, simulate(4, formulas)[0], strict=True):
        row = record[quantity]
        assert row.measured == row.theory == wanted, (
            f"{DEMO}: {quantity!r} has {row.measured:,}, {row.theory:,}, the formula says "
            f"{wanted:,}: run `make demo`, then `make register ARGS=--demo`")


def test_the_command_line(tmp_path):
    options = [text for name, value in SMALL.items() for text in (f"--{name}", str(value))]
    command = [sys.executable, str(SCRIPT), *options, "--sim", "2"]
    done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("| yes") == 5 and (tmp_path / "out" / "train_gpt.png").exists()


@pytest.mark.parametrize("options", some([
    {}, {"zero": 1, "amp": "O1"}, {"zero": 3, "amp": "O2", "recompute": 2}, {"offload": 1},
    {"zero": 2, "amp": "O2", "offload": 1}]))
def test_every_technique_trains_and_sends_what_it_says(options, train):
    printed = train(**options)
    assert printed.count("| yes") == (4 if "offload" in options else 5)
    assert re.search(r"^held +bytes$.*^optimizer +[1-9]", printed, re.M | re.S)
    collectives = {"ring.all_reduce"} if "zero" not in options else {
        "ring.all_reduce", "ring_blocks.all_gather",
        "all_to_all.all_to_all_v" if options["amp"] == "O2" else "ring_blocks.reduce_scatter"}
    for name in collectives:
        assert re.search(rf"^{name}", printed, re.M)


@pytest.mark.parametrize("n_ranks, options", some([
    (8, {"dp": 2, "pp": 2, "tp": 2, "zero": 1, "amp": "O1", "recompute": 1, "batch": 8}),
    (2, {"tp": 2}), (3, {"pp": 3, "layers": 3, "batch": 6, "amp": "O2"}),
    (4, {"pp": 2, "amp": "O1", "micro": 1}), (4, {"tp": 2, "zero": 2, "amp": "O2", "micro": 2}),
    (4, {"pp": 2, "tp": 2, "zero": 1, "amp": "O2", "recompute": 1})]))
def test_a_grid_trains_and_sends_what_it_says(n_ranks, options, train):
    printed = train(n_ranks, steps=2, **options)
    assert printed.count("| yes") == 7


def test_a_grid_learns_what_data_parallelism_does(train):
    """Digits of the table: float32 sums in another order."""
    figures = [re.search(r"^validation loss, bits per byte +\| +([\d.]+)", printed, re.M)[1]
               for printed in (train(2, steps=2), train(4, steps=2, pp=2, tp=2))]
    assert abs(float(figures[0]) - float(figures[1])) < 1e-3


def test_a_run_goes_on_on_another_grid(train):
    """Four steps, of which two on each grid, learn what four on one of them do."""
    options = dict(batch=8, every=2, lr=1e-3)
    whole = train(4, steps=4, pp=2, tp=2, save="grid", **options)
    with_others = train(4, steps=4, dp=2, tp=2, resume="grid@2", **options)
    figures = [re.search(r"^validation loss, bits per byte +\| +([\d.]+)", printed, re.M)[1]
               for printed in (whole, with_others)]
    assert abs(float(figures[0]) - float(figures[1])) < 1e-3


class Killed(Exception):
    pass


@pytest.mark.parametrize("options", some(
    [{"zero": 2, "amp": "O2", "offload": 1}, {}, {"zero": 3}], of=3))
def test_a_killed_run_goes_on_to_the_same_bits(options, train, tmp_path, monkeypatch):
    """The last index holds the losses, the generators, the scale, and each file's checksum."""
    real = durable.write

    def dies(path, *args, **options):
        if path.name == "step-00000004.json":  # the files are there, their index is not
            raise Killed
        return real(path, *args, **options)

    options |= {"steps": 6, "every": 2}
    wanted = train(save="whole", **options)
    with pytest.raises(RankFailed), monkeypatch.context() as patch:
        patch.setattr(durable, "write", dies)
        train(save="killed", **options)
    assert snapshot.steps("killed") == [2]
    got = train(save="killed", resume="killed", **options)
    last = "step-00000006.json"
    index = (tmp_path / "whole" / last).read_text()
    assert index == (tmp_path / "killed" / last).read_text()
    assert len(json.loads(index)["body"]["others"]["losses"]["values"]) == 6

    def table(printed):
        return re.findall(r"^(?!tokens per second).* \| .*$", printed, re.M)

    assert table(got) == table(wanted) and len(table(got)) >= 7


@pytest.mark.parametrize("options, words", [
    ({"zero": 4}, "want --zero from 0 to 3 and --amp from O0 to O3"),
    ({"amp": "O4"}, "want --zero from 0 to 3 and --amp from O0 to O3"),
    ({"batch": 3}, "divisible by 2 .2 replicas x 1 micro-batches.; got 3"),
    ({"pp": 2, "micro": 3}, "divisible by 3 .1 replicas x 3 micro-batches.; got 4"),
    ({"vocabulary": 255}, "--vocabulary must be at least 256.* got --vocabulary 255"),
    ({"text": "no such package"}, "--text must be the name of a folder.* got .*no such package"),
    ({"micro": 2}, "--micro 2 needs --pp or --tp"),
    ({"dp": 1}, "want --dp x --pp x --tp equal to 2, .*; got --dp 1 --pp 1 --tp 1"),
    ({"tp": 3}, "got --dp 0 --pp 1 --tp 3"), ({"pp": 2, "layers": 1}, "want --pp and"),
    ({"recompute": 3}, "--recompute of at most 2 .--layers.*; got --pp 1 --recompute 3"),
    ({"pp": 2, "offload": 1}, "--pp and --tp work only with --offload 0"),
    ({"tp": 2, "zero": 3}, "--zero from 0 to 2, .*; got --offload 0 --zero 3"),
    ({"resume": "nowhere"}, "--resume nowhere: wanted .*; nowhere holds no snapshot")])
def test_options_that_cannot_be_are_errors(options, words, train):
    with pytest.raises(RankFailed, match=words):
        train(**options)


def test_a_run_that_is_over_cannot_be_resumed(train):
    train(save="over", steps=2)
    with pytest.raises(RankFailed, match="--steps must be more than 2, .* in over; got 2"):
        train(resume="over", steps=2)


def test_a_run_goes_on_from_an_earlier_step_and_saves_elsewhere(train, tmp_path):
    train(save="first", steps=4, every=2)
    file, = (tmp_path / "first").glob("step-00000004.0-of-2.*")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(RankFailed, match="Step 2 is not damaged.* --resume first@2"):
        train(resume="first", steps=5)
    with pytest.raises(RankFailed, match="--save first holds the later step 4, .* after step 2"):
        train(resume="first@2", save="first", steps=4)
    train(resume="first@2", save="second", steps=4)
    name = "step-00000004.json"
    assert (tmp_path / "second" / name).read_text() == (tmp_path / "first" / name).read_text()
