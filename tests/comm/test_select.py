"""The choice: the least of the formulas, the same on all ranks; figures measured and kept."""

import errno
import functools
import json
import os
from pathlib import Path

import numpy as np
import pytest

from minidl.cli import doctor_links
from minidl.comm import cost, halving_doubling, objects, ring, select, shared_memory, simulate
from minidl.comm.collective import label_of
from minidl.comm.observe.ledger import Ledger
from minidl.comm.select import Figures
from minidl.comm.transport.links import Links
from minidl.plain import naive
from minidl.profile import peaks
from tests.comm.cases import all_reduces
from tests.conftest import ranks

NETWORK = Figures(50e-6, 8e-9, 2e-10, None, None, 1e-10)  # 1 Gbit/s, no shared memory
ONE_NODE = Figures(5e-6, 4e-10, 2e-10, 1e-5, 2e-10, 1e-10)


@pytest.mark.parametrize("figures", [NETWORK, ONE_NODE])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 64])
def test_the_choice_takes_the_least_modelled_time(n, figures):
    for n_bytes in (0, 4, 1009, 1 << 16, 1 << 20, 1 << 28):
        times = select.candidates(n, n_bytes, figures)
        assert list(times.values()) == sorted(times.values())
        assert times[select.choose(n, n_bytes, figures)] == min(times.values())
        assert (shared_memory.all_reduce in times) == (figures is ONE_NODE)
        link = (figures.alpha, figures.beta, figures.gamma)
        assert times[ring.all_reduce] == cost.ring_all_reduce(n, n_bytes, *link).time_s


def test_every_all_reduce_is_a_candidate_or_says_why_not():
    """And a candidate has its formula in cost.py, which a test of this folder calls."""
    chosen = {label_of(fn): fn for fn in select.candidates(4, 1 << 20, ONE_NODE)}
    assert not chosen.keys() & select.NOT_CANDIDATES.keys()
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    for label in all_reduces():
        assert label in {*chosen, *select.NOT_CANDIDATES}, (
            f"minidl/comm/select.py: put {label} into `candidates`, or into NOT_CANDIDATES with a "
            "reason")
        if label in chosen:
            module, name = label.split(".")
            formula = name if hasattr(cost, name) else f"{module}_{name}"
            assert f"cost.{formula}(" in tests or f'cost, f"{module}_' in tests, (
                f"minidl/comm/cost.py wants {formula}, and tests/comm/test_cost.py a test that it "
                f"is what {label} sends")


def test_few_steps_for_short_arrays_few_bytes_for_long_ones():
    assert select.choose(8, 8, NETWORK) is halving_doubling.doubling_all_reduce
    assert select.choose(8, 1 << 26, NETWORK) is not halving_doubling.doubling_all_reduce
    assert select.choose(7, 1 << 28, NETWORK) is ring.all_reduce  # halving would fold 7 to 4
    assert select.choose(4, 1 << 26, ONE_NODE) is shared_memory.all_reduce


@pytest.mark.parametrize("figures", [NETWORK, ONE_NODE])
@pytest.mark.parametrize("length", [0, 1, 1009, 100_003])
@ranks(1, 2, 3, 4, 5, 8)
def test_it_sums_by_the_chosen_way(t, length, figures):
    # whole numbers up to 2**24: every order of summing gives the same float32
    x = (np.arange(length) % 1000 + 7 * t.rank).astype("f4")
    want = naive.all_reduce(t, x.copy())
    all_reduce = functools.partial(select.all_reduce, figures=figures)
    ledger = Ledger(t)
    assert (all_reduce(ledger, x) == want).all() and (x == want).all()
    least = naive.all_reduce(t, -x, np.minimum)
    assert (all_reduce(t, -x, np.minimum) == least).all()
    other = Ledger(t)
    select.choose(t.size, x.nbytes, figures)(other, x)
    assert ledger.bytes_sent == other.bytes_sent  # by that way, and nothing beside it
    assert ledger.messages_sent == other.messages_sent


@ranks(1, 2, 4)
def test_figures_are_the_same_on_all_ranks(t):
    # what a rank's own clock says differs; a choice by it could send ranks different ways
    measured = objects.all_gather(t, select.measure(t, rounds=1))
    assert measured == [measured[0]] * t.size


def test_measuring_finds_the_simulated_network():
    alpha, beta = 20e-6, 2e-9
    for figures in simulate(4, lambda t: select.measure(t, rounds=1), alpha=alpha, beta=beta):
        # A barrier lets ranks go up to 2 alpha apart. That is shared by the 60 steps of 10 rings,
        # by 10 signals of the window, and by 2 long all-reduces.
        assert figures.alpha == pytest.approx(alpha, rel=2 / 60 + 0.01)
        assert figures.beta == pytest.approx(beta, rel=0.01)
        assert figures.signal == pytest.approx(alpha, rel=2 / 10 + 0.01)
        assert figures.read == pytest.approx(beta, rel=0.01)


def test_ranks_on_two_nodes_have_no_window():
    links = Links.nodes(2, (1e-6, 1e-10), (5e-5, 1e-8))
    figures = simulate(4, lambda t: select.measure(t, rounds=1), links=links)[0]
    assert figures.signal is None and figures.read is None
    assert shared_memory.all_reduce not in select.candidates(4, 1 << 20, figures)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_stored_figures_come_back_on_all_ranks(n, tmp_path, monkeypatch):
    monkeypatch.setenv("MINIDL_CACHE", str(tmp_path))

    def body(t):
        before = select.stored(t)
        select.store(t, ONE_NODE)
        return before, select.stored(t)

    assert simulate(n, body) == [(None, ONE_NODE)] * n
    assert [path.suffix for path in (tmp_path / "links").iterdir()] == [".json"]


GOOD = json.dumps(ONE_NODE._asdict())
BAD = {
    "empty": "", "half": GOOD[:len(GOOD) // 2], "a list": "[]", "a number": "3", "null": "null",
    "another program's": '{"alpha": 1e-6, "rate": 3}', "a name more": GOOD[:-1] + ', "x": 1}',
    "NaN": GOOD.replace("5e-06", "NaN"), "infinite": GOOD.replace("5e-06", "1e999"),
    "negative": GOOD.replace("4e-10", "-4e-10"), "huge": GOOD.replace("4e-10", "1e300"),
    "a long integer": GOOD.replace("4e-10", "1" + 400 * "0"),
    "digits without end": GOOD.replace("4e-10", 10000 * "1"),
    "a text": GOOD.replace("4e-10", '"4e-10"'), "true": GOOD.replace("4e-10", "true"),
    "no alpha": GOOD.replace("5e-06", "null"), "messages for nothing": GOOD.replace("5e-06", "0"),
    "sums for nothing": GOOD.replace("2e-10", "0"), "half a window": GOOD.replace("1e-05", "null"),
    "deep": 100000 * "[", "no text": b"\xff\xfe" + GOOD.encode(),
    "long": GOOD[:-1] + (1 << 17) * " " + "}", "zeros": bytes(len(GOOD))}


def stores_nothing(n):
    """Whether no rank of n has figures, and there was one warning that says what to do."""
    with pytest.warns(RuntimeWarning) as said:
        assert simulate(n, select.stored) == [None] * n
    assert len(said) == 1 and f"`minidl doctor --links {n}` measures again" in str(said[0].message)
    return True


@pytest.fixture
def figures_file(tmp_path, monkeypatch):
    """The file of figures for 2 ranks, written and found again."""
    monkeypatch.setenv("MINIDL_CACHE", str(tmp_path))
    path = simulate(2, select.file_of)[0]
    assert select.keep(path, ONE_NODE._asdict()) == f"stored in {path}"
    assert simulate(2, select.stored) == [ONE_NODE] * 2
    return path


@pytest.mark.parametrize("how", BAD)
def test_a_file_without_good_figures_is_not_used(figures_file, how):
    """Red before: a traceback on rank 0, and the others waited; or a choice by nonsense."""
    bad = BAD[how]
    figures_file.write_bytes(bad if isinstance(bad, bytes) else bad.encode())
    assert stores_nothing(2)
    simulate(2, lambda t: select.store(t, NETWORK))  # measured again
    assert simulate(2, select.stored) == [NETWORK] * 2


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="a system without owners of files")
def test_figures_that_others_can_have_written_are_not_used(figures_file, monkeypatch):
    for mode in 0o664, 0o646:
        figures_file.chmod(mode)
        assert stores_nothing(2), oct(mode)
    figures_file.chmod(0o644)
    figures_file.parent.chmod(0o777)
    assert stores_nothing(2)
    figures_file.parent.chmod(0o755)
    real = Path.stat

    def of_another(path, **options):
        found = list(real(path, **options))
        found[4] += path == figures_file
        return os.stat_result(found)

    monkeypatch.setattr(Path, "stat", of_another)
    assert stores_nothing(2)


def test_what_is_no_file_has_no_figures(figures_file):
    figures_file.unlink()
    figures_file.mkdir()
    assert stores_nothing(2)
    figures_file.rmdir()
    os.mkfifo(figures_file)  # to open it would wait for ever
    assert stores_nothing(2)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_figures_are_replaced_as_a_whole(figures_file, monkeypatch, step):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = figures_file.read_text()
    monkeypatch.setattr(os, step, full)
    said = simulate(2, lambda t: select.store(t, NETWORK))[0]
    assert said.startswith("not stored: No space left") and figures_file.read_text() == before
    assert list(figures_file.parent.iterdir()) == [figures_file]


@pytest.mark.parametrize("n", [1, 2])
def test_where_nothing_may_be_written_a_sentence_says_so(n, tmp_path, monkeypatch):
    """Red before: `minidl doctor --links` and --peaks ended in a traceback."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINIDL_CACHE", str(tmp_path / "file"))  # no folder can be in it
    said = simulate(n, lambda t: select.store(t, ONE_NODE))
    assert said[0].startswith("not stored: ") and said[0].endswith("you may write to")
    assert not any(said[1:])
    text = peaks.store(n=64, n_bytes=1 << 16, seconds=0.01)
    assert "GB/s\nnot stored: " in text and str(peaks.file_of().parent) in text
    monkeypatch.setenv("MINIDL_CACHE", str(tmp_path))
    assert peaks.store(n=64, n_bytes=1 << 16, seconds=0.01).endswith(f"stored in {peaks.file_of()}")


def test_the_explanation_names_the_choice_and_its_figures():
    text = select.explain(4, ONE_NODE, sizes=(1024, 1 << 26))
    assert "4 ranks" in text and "message 5.0 us, 2.50 GB/s" in text and "modelled" in text
    assert "67,108,864  shared_memory.all_reduce" in text
    text = select.explain(4, NETWORK)
    assert "shared_memory" not in text and "no shared memory" in text


def test_a_ping_pong_takes_the_simulated_link():
    alpha, beta = 20e-6, 2e-9
    times = simulate(3, lambda t: doctor_links.ping_pong(t, 1000, 5), alpha=alpha, beta=beta)
    # half of a difference of the clock, some 1e-4 s after its start
    assert times[0] == pytest.approx(alpha + 1000 * beta, rel=1e-9)


@pytest.mark.parametrize("variables, folder", [
    ({}, "HOME/.cache/minidl"), ({"XDG_CACHE_HOME": "/x"}, "/x/minidl"),
    ({"MINIDL_CACHE": "/m"}, "/m"), ({"MINIDL_CACHE": "/m", "XDG_CACHE_HOME": "/x"}, "/m")])
def test_the_file_of_figures_is_in_the_cache_of_the_environment(variables, folder, monkeypatch):
    for name in ("MINIDL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/ada")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    wanted = Path(folder.replace("HOME", "/home/ada"), "figures", "4-ranks.json")
    assert select.file_in("figures", "4 ranks") == wanted
