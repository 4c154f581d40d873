"""minidl/cli/numa.py on fake /sys trees; what both launchers make of --bind; stdin.py."""

import os
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

from minidl.cli import doctor, launcher, machine, main, numa, stdin
from tests.conftest import each_once
from tests.mpi.launch import PYTHONS, mpiexec_of, require_mpi

GIB = 2**20  # in kB


@pytest.fixture
def tree(tmp_path):
    """tree({node: (cpulist, GiB)}, {nic: node}): a fake /sys."""
    def tree(nodes, nics=()):
        for number, (cpus, n_gib) in nodes.items():
            folder = tmp_path / f"devices/system/node/node{number}"
            folder.mkdir(parents=True)
            (folder / "cpulist").write_text(f"{cpus}\n")
            (folder / "meminfo").write_text(
                f"Node {number} MemTotal:  {n_gib * GIB} kB\nNode {number} MemFree: 1 kB\n")
        (tmp_path / "devices/system/node/online").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "devices/system/node/online").write_text("0\n")
        for nic, number in dict(nics).items():
            folder = tmp_path / f"class/net/{nic}/device"
            folder.mkdir(parents=True)
            (folder / "numa_node").write_text(f"{number}\n")
        return tmp_path

    return tree


@pytest.mark.parametrize("text, cpus", [
    ("0-3,8", {0, 1, 2, 3, 8}), ("5", {5}), ("\n", set()), ("0-1,4-5,7\n", {0, 1, 4, 5, 7})])
def test_lists_of_cpus(text, cpus):
    assert numa.cpus_in(text) == cpus
    assert numa.ranges(cpus) == text.strip()


def test_nodes_with_holes_and_one_of_memory_alone(tree):
    root = tree({0: ("0-3,8-11", 64), 2: ("4-7,12-15", 32), 10: ("", 128)},
                {"eth0": 2, "wlan0": -1})
    assert numa.nodes(root) == [
        (0, {0, 1, 2, 3, 8, 9, 10, 11}, 64 * 2**30), (2, {4, 5, 6, 7, 12, 13, 14, 15}, 32 * 2**30),
        (10, set(), 128 * 2**30)]
    assert numa.nics(root) == {"eth0": 2}
    # a cpuset smaller than a node, one across two, one that no node has
    assert numa.on(numa.nodes(root), {5, 6}) == [2]
    assert numa.on(numa.nodes(root), {3, 4}) == [0, 2]
    assert numa.on(numa.nodes(root), {99}) == []


def test_a_machine_that_tells_no_nodes(tmp_path):
    assert numa.nodes(tmp_path) == [] and numa.nics(tmp_path) == {}
    assert numa.here(tmp_path)["nodes"] == []
    assert numa.touched(np.ones(3), tmp_path / "none") == {}


def test_memory_lies_where_it_was_touched_first(tmp_path):
    x = np.ones(1 << 20)
    at = x.ctypes.data
    (tmp_path / "maps").write_text(
        f"{at - 8192:x} default anon=3 dirty=3 N0=3 kernelpagesize_kB=4\n"
        f"{at - 16:x} default anon=9 dirty=9 N0=2 N1=7 kernelpagesize_kB=4\n"
        f"{at + (1 << 20):x} default anon=9 dirty=9 N1=4 kernelpagesize_kB=4\n"  # huge pages
        f"{at + (1 << 24):x} default anon=5 N3=5\n")
    assert numa.touched(x, tmp_path / "maps") == {0: 2, 1: 11}
    pages = numa.touched(x)
    assert not os.path.exists("/proc/self/numa_maps") or sum(pages.values()) * 4096 >= x.nbytes


def test_the_formula():
    assert numa.time_s(1e9, 0.0, 1e10, 5e9) == 0.1
    assert numa.time_s(1e9, 1.0, 1e10, 5e9) == 0.2
    assert numa.time_s(1e9, 0.25, 1e10, 5e9) == pytest.approx(0.125)


def test_the_doctors_lines(tree):
    root = tree({0: ("0-1", 4), 1: ("", 8)}, {"eth0": 1})
    ranks = [{"cpus": "0-1", "nodes": [0], "memory": 0}, {"cpus": "7", "nodes": [], "memory": None}]
    assert numa.report(ranks, root) == [
        "node 0: cpus 0-1, 4.0 GiB", "node 1: no cpus, 8.0 GiB",
        "--bind numa: rank 0 on node 0, cpus 0-1; its memory on node 0",
        "--bind numa: rank 1 on node unknown, cpus 7; its memory on node unknown",
        "eth0: on node 1",
        "near and far memory: not measured, because this machine has one node"]
    measured = numa.report([], root, measured=lambda nodes: (10e9, 5e9))[-1]
    assert "10.0 GB/s from near memory and 5.0 GB/s from far memory" in measured
    assert "161 ms by the formula, and 107" in measured


def test_measuring_puts_the_cpus_back():
    """Two nodes of this process's own cpus: the speeds are alike, but the way is gone."""
    before = os.sched_getaffinity(0)
    half = [numa.Node(i, frozenset({cpu}), 0) for i, cpu in enumerate(sorted(before)[:2])]
    if len(half) < 2:
        pytest.skip("one core")
    assert all(speed > 1e7 for speed in numa.measure(half))
    assert os.sched_getaffinity(0) == before
    assert numa.measure(half[:1]) is None


def test_a_launcher_or_machine_that_cannot_bind_so_is_named():
    with pytest.raises(numa.BindError, match="3 ranks of 4 threads want 12 cores.*has 8"):
        numa.options("MPICH", "core", 3, 4, 8)
    with pytest.raises(numa.BindError, match="got a launcher of Intel MPI.*--cpu-bind=ldoms"):
        numa.options("Intel MPI", "numa", 3, 4, 8)


@pytest.mark.mpi
@pytest.mark.parametrize("bind, masks", [
    ("numa", ["11110000", "00001111", "11110000"]), ("core", ["11000000", "00110000", "00001100"])])
def test_mpich_binds_so_on_a_machine_of_two_nodes(bind, masks):
    """On a machine that hwloc imagines; Hydra prints what it would bind. The ranks sleep: where all
    have ended before Hydra has passed its input on to them, SIGPIPE ends it (9 of 60 runs of
    `true`, on a busy machine)."""
    require_mpi()
    mpiexec = machine.find_mpiexec()
    if (vendor := doctor.vendor_of(mpiexec)) != "MPICH":
        pytest.skip(f"Hydra prints its bindings, {vendor} does not")
    environment = os.environ | {"HWLOC_SYNTHETIC": "numa:2 core:4 pu:1", "HYDRA_TOPO_DEBUG": "1"}
    ran = subprocess.run([mpiexec, *numa.options(vendor, bind, 3, 2, 8), "-n", "3", "sleep",
                          "0.3"], env=environment, capture_output=True, text=True, timeout=60)
    found = re.findall(r"process (\d) binding: (\d+)", ran.stdout + ran.stderr)
    assert [mask for _, mask in sorted(found)] == masks, ran


SHOW = """
import os, sys
sys.stdout.write(f"{sorted(os.sched_getaffinity(0))} {sys.stdin.readline()!r} \\n")
"""


@pytest.mark.mpi
@pytest.mark.parametrize("bind, mpi", each_once(["numa", "core"], PYTHONS))
def test_ranks_are_bound_and_rank_0_has_the_file(bind, mpi, tmp_path):
    require_mpi(mpi)
    (tmp_path / "show.py").write_text(SHOW)
    (tmp_path / "words").write_text("first\nsecond\n")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core")
    command = [PYTHONS[mpi], "-m", "minidl", "run", "-n", "2", "--threads", "1", "--mpiexec",
               shlex.quote(mpiexec_of(mpi)), "--bind", bind, "--stdin", "words", "show.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60,
                         stdin=subprocess.DEVNULL,
                         env=os.environ | {"PYTHONPATH": str(launcher.rank.ROOT)})
    lines = sorted(ran.stdout.splitlines())
    assert ran.returncode == 0 and len(lines) == 2, ran
    assert sorted(line.split("'")[1] for line in lines) == ["", r"first\n"]
    sets = [re.match(r"\[(.*)\]", line)[1] for line in lines]
    if bind == "core":
        assert len(set(sets)) == 2 and all("," not in s for s in sets), "a core for each"
    else:
        found = numa.nodes()
        whole = {str(sorted(node.cpus & set(cores)))[1:-1] for node in found if node.cpus}
        assert set(sets) <= whole


# -- standard input


def test_a_file_on_standard_input_is_refused_by_name(tmp_path, monkeypatch, capsys):
    (tmp_path / "s.py").touch()
    monkeypatch.setattr(stdin, "given", lambda: "/data/clicks.txt")
    assert main.main(["run", "-n", "2", str(tmp_path / "s.py")]) == 2
    assert "Write: --stdin /data/clicks.txt" in capsys.readouterr().err
    monkeypatch.undo()
    assert main.main(["run", "-n", "2", "--stdin", "none", str(tmp_path / "s.py")]) == 2
    assert "--stdin: cannot read none" in capsys.readouterr().err


def test_what_is_given_on_standard_input(tmp_path):
    file = tmp_path / "words"
    file.write_text("one\n")
    with open(file, "rb") as f:
        assert stdin.given(f.fileno()) == str(file)
        assert f"--stdin {file}" in stdin.refusal(str(file))
        f.seek(4)
        assert stdin.given(f.fileno()) is None, "nothing is left to be read"
    with open(os.devnull, "rb") as f:
        assert stdin.given(f.fileno()) is None
    read, write = os.pipe()
    try:
        assert stdin.given(read) is None, "an empty pipe, as many programs leave it open"
        os.write(write, b"x")
        assert stdin.given(read) == "a pipe" and "--stdin FIFO" in stdin.refusal("a pipe")
    finally:
        os.close(read)
        os.close(write)


def test_only_rank_0_has_the_file(tmp_path):
    (tmp_path / "words").write_text("one\n")
    code = ("import sys; from minidl.cli import stdin; env = {stdin.VARIABLE: sys.argv[1]};"
            "stdin.take(env, int(sys.argv[2])); print(repr(sys.stdin.read()), env)")
    out = [subprocess.run([sys.executable, "-c", code, tmp_path / "words", str(rank)],
                          capture_output=True, text=True, input="mpiexec's").stdout
           for rank in (0, 1)]
    assert out == ["'one\\n' {}\n", "'' {}\n"]
