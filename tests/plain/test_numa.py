"""The page and the real one: the same cores, nodes and times."""

import multiprocessing
import os

import pytest

from minidl.cli import numa as real
from minidl.plain import numa


@pytest.mark.parametrize("text", ["0", "0-3", "0-3,8", "2,4-5,7-7,16-31"])
def test_a_list_of_cores_is_read_alike(text):
    assert set(numa.numbers(text)) == real.cpus_in(text)


def test_every_rank_is_on_one_node_and_nodes_have_equally_many():
    machine = [real.Node(0, frozenset(range(4)), 0), real.Node(1, frozenset(range(4, 8)), 0),
               real.Node(2, frozenset(range(8, 12)), 0)]
    cores = [sorted(node.cpus) for node in machine]
    where = [real.on(machine, set(numa.cores_of(rank, cores))) for rank in range(7)]
    assert where == [[0], [1], [2], [0], [1], [2], [0]]


@pytest.mark.parametrize("far", [0, 0.25, 1])
def test_the_time_is_the_real_formula(far):
    assert numa.time_s(1e9, far, 80e9, 30e9) == real.time_s(1e9, far, 80e9, 30e9)


def cores_when_bound(rank):
    numa.bind(rank)
    return sorted(os.sched_getaffinity(0))


@pytest.mark.skipif(not numa.nodes() or not set(numa.nodes()[0]) & os.sched_getaffinity(0),
                    reason="this system says nothing about its nodes, or has given us another one")
def test_this_machines_nodes_are_the_real_ones_and_a_process_can_be_bound():
    found = [node for node in real.nodes() if node.cpus]
    assert sorted(sorted(node.cpus) for node in found) == sorted(numa.nodes())
    allowed = os.sched_getaffinity(0)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        bound = set(pool.apply(cores_when_bound, (0,)))
    assert bound == set(numa.nodes()[0]) & allowed
