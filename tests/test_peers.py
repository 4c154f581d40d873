"""Tests that `make peers` counts correctly, and fails if an answer is wrong. Needs no peer."""

import types

import pytest

from tests.peers import __main__ as peers


def ended(monkeypatch, *cases):
    """Returns the exit status of a run whose one peer has these cases."""
    peer = types.SimpleNamespace(cases=lambda word: [case for case in cases if word in case[0]])
    monkeypatch.setattr(peers.importlib, "import_module", lambda name: peer)
    return peers.main(peers.PEERS[0])


@pytest.mark.parametrize("cases, status", [
    ([("a", "passed", ""), ("b", "not mapped", "no b here")], 0),
    ([("a", "passed", ""), ("b", "wrong", "2, want 3")], 1),
    ([("b", "not mapped", "no b here")], 1), ([], 1)])
def test_a_wrong_answer_is_red_and_so_is_a_peer_that_ran_nothing(monkeypatch, cases, status):
    assert ended(monkeypatch, *cases) == status


def test_the_table_counts_and_says_why(monkeypatch, capsys):
    ended(monkeypatch, ("a", "passed", ""), ("b", "wrong", "2, want 3"), ("c", "passed", ""),
          *[(f"d{i}", "not mapped", "no d here") for i in range(3)])
    *said, _, heads, row = capsys.readouterr().out.splitlines()
    name = peers.PEERS[0]
    assert said == [f"{name}: wrong  b: 2, want 3", f"{name}:    3 not mapped: no d here"]
    assert heads.split() == ["peer", "passed", "wrong", "not", "mapped", "seconds"]
    assert row.split()[:4] == [name, "2", "1", "3"]


def test_a_peer_that_is_none_is_refused(capsys):
    assert peers.main("numpy") == 2
    assert "no peer 'numpy'; there are pipelining, " in capsys.readouterr().err
