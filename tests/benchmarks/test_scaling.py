"""bench_scaling.py on a few ranks and short texts: its figures are right, its bars can fail."""

import copy
import sys
from types import SimpleNamespace

import pytest

from benchmarks.cluster import ROOT

FOLDER = ROOT / "benchmarks"
if str(FOLDER) not in sys.path:
    sys.path.insert(0, str(FOLDER))  # where a benchmark finds its neighbours

import bench_scaling as scaling  # noqa: E402

MIB = 2**20


def by_length(growth, lengths=(512, 1024, 2048)):
    """Made-up figures of a curve whose bytes grow by `growth` for twice the length."""
    return {str(length): {"times": {scaling.OURS: [length / 1e5] * 3,
                                    scaling.TORCH: [2 * length / 1e5] * 3},
                          "bytes": {"activations": MIB * growth**i, "step": MIB * growth**i,
                                    scaling.TORCH: MIB * growth**i}}
            for i, length in enumerate(lengths)}


@pytest.fixture(scope="module")
def figures():
    ranks = scaling.in_ranks(SimpleNamespace(ranks=[16, 64]))
    ranks["all-reduce"] = {array: {str(n): f for n, f in found.items()}  # as JSON has them
                           for array, found in ranks["all-reduce"].items()}
    ranks["weak scaling"] = {str(n): f for n, f in ranks["weak scaling"].items()}
    return {"ranks": ranks, "context": {scaling.ATTENTION: by_length(2), scaling.GPT: by_length(2),
                                        "control": {"1024": MIB, "2048": 4 * MIB}}}


def missed(figures):
    """The names of the bars that are not met, those of wall time left out."""
    bars, rows = scaling.report(figures)
    names = [b["what"] for b in bars]
    assert len(set(names)) == len(names)
    assert sorted(names) == sorted(name for row in rows for name in row["bars"])
    return [b["what"] for b in bars if not b["met"] and "wall" not in b["what"]]


def test_simulated_times_are_those_of_the_formulas(figures):
    assert missed(figures) == []


def test_data_parallelism_alone_is_never_better_than_the_best_division(figures):
    for found in figures["ranks"]["weak scaling"].values():
        assert 0 < found["dp"] <= found["best"] <= 1


@pytest.mark.parametrize("change, what", [
    (lambda f: f["ranks"]["all-reduce"]["1 MiB"]["64"]["times"].update(
        {"tree.all_reduce": (2.0, 1.9, 0.1)}), "1 MiB, tree.all_reduce: modelled / formula - 1"),
    (lambda f: f["ranks"]["all-reduce"]["1 MiB"]["64"].update(chosen="ring.all_reduce"),
     "1 MiB: modelled time of the chosen / of the fastest"),
    (lambda f: f["context"][scaling.GPT]["512"]["times"].update({scaling.OURS: [1.0] * 3}),
     "GPT, context 512: torch / minidl"),
    (lambda f: f["context"][scaling.GPT]["2048"]["times"].update({scaling.OURS: [1.0] * 3}),
     "GPT: p of context^p, 512 to 2,048"),
    (lambda f: f["context"].update({scaling.ATTENTION: by_length(4)}),
     "attention: bytes of activations, 2,048 / 1,024"),
    (lambda f: f["context"]["control"].update({"2048": 2 * MIB}),
     "control, weights kept: bytes, 2,048 / 1,024"),
], ids=["formula", "choice", "slower", "power", "bytes", "control"])
def test_a_planted_fault_misses_its_bar(figures, change, what):
    wrong = copy.deepcopy(figures)
    change(wrong)
    assert what in missed(wrong)


def test_the_ledger_of_attention_grows_as_the_context_and_the_control_as_its_square():
    pytest.importorskip("torch", reason="attention is made beside PyTorch's")
    found = []
    for length in (256, 512):
        steps, same, sizes = scaling.attention(length)
        same(*(step() for step in steps.values()))
        found.append(sizes())
    for kind in ("activations", scaling.TORCH):
        # PyTorch fills up some rows
        assert found[1][kind] == pytest.approx(2 * found[0][kind], rel=0.01)
    assert scaling.control_bytes(512) > 3.5 * scaling.control_bytes(256)


def test_a_gpt_trains_as_pytorchs():
    pytest.importorskip("torch", reason="the GPT is made beside PyTorch's")
    steps, same, sizes = scaling.gpt(1, 32)
    times = scaling.in_turns(steps, same, SimpleNamespace(threads=1, seconds=0))
    assert {name: len(of) for name, of in times.items()} == {scaling.OURS: 3, scaling.TORCH: 3}
    assert set(sizes()) == {"activations", "step", scaling.TORCH}


def test_the_curves_are_drawn(figures, tmp_path):
    pytest.importorskip("matplotlib", reason="draws")
    scaling.draw(figures, tmp_path / "new" / "scaling.png")
    assert (tmp_path / "new" / "scaling.png").stat().st_size > 10_000
