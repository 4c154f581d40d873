"""minidl run --hosts: who answers, and a host that dies as a whole."""

import os
import re
import shlex
import subprocess
import time

import pytest

from benchmarks import cluster
from minidl import elastic
from minidl.cli import hosts, restarts
from minidl.cli.launcher import LaunchError, run
from minidl.cli.machine import find_mpiexec
from minidl.comm import simulate
from tests.chaos.chaos import shared
from tests.cli.test_restarts import DONE, ended
from tests.conftest import some
from tests.elastic import runs
from tests.mpi.launch import PYTHONS, ROOT, mpiexec_of, require_mpi


def write(path, text):
    path.write_text(text)
    return path


def test_a_file_of_hosts(tmp_path):
    path = write(tmp_path / "hosts", "# ours\nnode1 slots=2\n\n  node2\n10.0.0.3 slots=12\n")
    assert hosts.read(path) == {"node1": 2, "node2": 1, "10.0.0.3": 12}


@pytest.mark.parametrize("text, said", [
    ("node1 slot=2", "line 1: wanted a new host.*got 'node1 slot=2'"),
    ("node1\nnode1", "line 2: wanted a new host"), ("node1 slots=0", "line 1"),
    ("# none", "has no hosts"), ("a b", "line 1"),
])
def test_a_file_that_says_something_else_is_refused(text, said, tmp_path):
    path = write(tmp_path / "hosts", text)
    with pytest.raises(ValueError, match=said):
        hosts.read(path)


@pytest.mark.parametrize("nodes, tasks, found", [
    ("node1", "4", {"node1": 4}),
    ("gpu[01-02,7],login", "2(x3),1", {"gpu01": 2, "gpu02": 2, "gpu7": 2, "login": 1}),
    ("r[1-2]n[08-10]", "1(x6)", dict.fromkeys(
        ["r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10"], 1)),
    ("a,b[099-100]x", "3,2(x2)", {"a": 3, "b099x": 2, "b100x": 2}),
])
def test_hosts_of_a_slurm_job(nodes, tasks, found, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_NODELIST", nodes)
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", tasks)
    assert hosts.read("slurm") == found


def test_slurms_variables_that_are_missing_or_do_not_fit(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    with pytest.raises(LaunchError, match="--hosts: slurm: SLURM_JOB_NODELIST is not set"):
        run(__file__, [], 2, hosts="slurm")
    with pytest.raises(ValueError, match=r"LIST=a\[1-3\] has 3 hosts, but .*=2\(x2\) is for 2"):
        hosts.of_slurm({"SLURM_JOB_NODELIST": "a[1-3]", "SLURM_TASKS_PER_NODE": "2(x2)"})


def test_in_a_slurm_job_srun_asks(tmp_path, monkeypatch):
    agent = write(tmp_path / "srun", '#!/bin/sh\n[ "$*" = "--overlap -N1 -n1 -w good true" ]\n')
    agent.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("HYDRA_LAUNCHER_EXEC", raising=False)
    assert hosts.answering({"good": 2, "bad": 1}) == {"good": 2}


def test_a_file_that_is_not_there():
    with pytest.raises(LaunchError, match="--hosts: cannot read nowhere: No such file"):
        run(__file__, [], 2, hosts="nowhere")


def test_more_ranks_than_places(tmp_path):
    path = write(tmp_path / "hosts", "node1 slots=2\nnode2")
    with pytest.raises(LaunchError, match="wanted 4 slots, .* have 3 slots"):
        run(__file__, [], 4, hosts=path)


@pytest.mark.parametrize("n, given", [(1, "a:1"), (2, "a:2"), (3, "a:2,b:1"), (5, "a:2,b:1,c:2")])
def test_the_first_hosts_are_filled_first(n, given):
    assert hosts.places({"a": 2, "b": 1, "c": 4}, n) == given


def test_who_answers(tmp_path, monkeypatch):
    """Red before: of a path with a space the first word was asked."""
    agent = write(tmp_path / "my agent.sh", '#!/bin/sh\ncase $1 in bad) exit 255;; slow) sleep 9;; '
                                            'esac\n')
    agent.chmod(0o755)
    monkeypatch.setenv("HYDRA_LAUNCHER_EXEC", str(agent))
    start = time.monotonic()
    assert hosts.answering({"good": 2, "bad": 1, "slow": 1, "fine": 3}, ask_s=2) == {
        "good": 2, "fine": 3}
    assert time.monotonic() - start < 6


def test_places_go_and_come_back():
    started, room = [], iter([4, 2, 4])

    def start(n, number):
        started.append(n)
        return ended(n, **[{"step": 3}, {"step": 7, "failed": (0,)}, DONE][number - 1])

    assert restarts.until_done(start, 4, 2, 5, lambda text: None, lambda: next(room)) == 0
    assert started == [4, 2, 4]


def test_where_mpiexec_starts_nobody_all_that_answer_are_started_again():
    """Red before: a host that died after it had answered took the places of all others with it."""
    started, room = [], iter([4, 4, 2])

    def start(n, number):
        started.append(n)
        return ended(n, **[{"step": 3}, {"born": 0, "step": None, "status": 255}, DONE][number - 1])

    assert restarts.until_done(start, 4, 2, 5, lambda text: None, lambda: next(room)) == 0
    assert started == [4, 4, 2]


def test_a_host_that_goes_is_no_bug_though_mpiexec_fails_twice_alike():
    nobody = {"born": 0, "step": None, "status": 255}
    started, room = [], iter([4, 4, 4, 2])

    def start(n, number):
        started.append(n)
        return ended(n, **[{"step": 3}, nobody, nobody, DONE][number - 1])

    assert restarts.until_done(start, 4, 2, 5, lambda text: None, lambda: next(room)) == 0
    assert started == [4, 4, 4, 2]


def test_where_too_few_hosts_answer_nothing_is_started():
    said = []
    assert restarts.until_done(None, 4, 3, 5, said.append, lambda: 2) == 1
    assert "2 of 4 ranks could be started, but at least 3 are wanted" in said[0]


SCRIPT = """\
import os, subprocess, sys
from minidl import elastic
from tests.elastic import runs
folder, name = sys.argv[1:]
def train(t, step, **objects):
    if os.environ["MINIDL_ATTEMPT"] == "1" and step == 8 and t.rank == t.size - 1:
        open(f"{folder}/dies", "w").close()
        import time
        time.sleep(60)
    runs.step(t, step, **objects)
model = elastic.run(train, runs.state("zero1"), 11, f"{folder}/runs", 3)["model"]
print("ranks", model.t.size, "weights", runs.digest(model), flush=True)
"""


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.skipif(cluster.why_not() is not None, reason=str(cluster.why_not()))
@pytest.mark.parametrize("mpi", some(["mpi", "openmpi"]))
def test_a_host_that_dies_as_a_whole_is_left_out(mpi, tmp_path):
    """Under Open MPI of a run that heals, which it cannot then: Open MPI's launcher goes, too."""
    require_mpi(mpi)
    write(tmp_path / "script.py", SCRIPT)
    with cluster.cluster(hosts=2, mbit=1000) as c:
        agent, quoted = str(cluster.ENTER_HOST), shlex.quote(str(cluster.ENTER_HOST))
        write(tmp_path / "hosts", "".join(f"{host} slots=2\n" for host in c.hosts))
        mpiexec = {
            "mpi": f"{shlex.quote(find_mpiexec())} -launcher ssh -launcher-exec {quoted} "
                   f"-localhost {cluster._address(0)}",
            "openmpi": f"{shlex.quote(mpiexec_of('openmpi'))} --prtemca plm_ssh_agent {quoted} "
                       "--prtemca oob_tcp_if_include eth0 --mca btl_tcp_if_include eth0"}[mpi]
        child = subprocess.Popen(
            [*cluster.enter(c.hosts[0]), PYTHONS[mpi], "-m", "minidl", "run", "-n", "4",
             *["--heal"] * (mpi == "openmpi"), "--hosts", tmp_path / "hosts", "--restarts", "6",
             "--min-ranks", "2", "--mpiexec", mpiexec, tmp_path / "script.py", tmp_path, "x"],
            env=os.environ | {"PYTHONPATH": str(ROOT), "HYDRA_LAUNCHER_EXEC": agent,
                              "UCX_TLS": "tcp", "UCX_NET_DEVICES": "eth0"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        until = time.monotonic() + 60 * shared()
        while not (tmp_path / "dies").exists() and time.monotonic() < until:
            assert child.poll() is None, child.communicate()
            time.sleep(0.05)
        cluster.power_off(c.hosts[1])
        out, err = child.communicate(timeout=90 * shared())
    assert child.returncode == 0, err
    assert f"no answer from {c.hosts[1]}" in err and "starting 2 ranks again" in err, err
    digests = re.findall(r"^ranks 2 weights (\w+)", out, re.M)
    words = r"^ +\d+ +2 +(\d+) +11 " if mpi == "mpi" else r"^minidl heal: 2 .* from step (\d+)"
    *_, begin = re.findall(words, err, re.M)  # of the attempt that ended well
    assert int(begin) in (3, 6), err
    assert sorted(digests) == sorted(weights(tmp_path / "oracle", int(begin)))


def weights(folder, begin):
    """Of 2 simulated ranks that go on where 4 have saved."""
    def run(t, n_steps):
        done = elastic.run(runs.step, runs.state("zero1"), n_steps, folder, begin, t)
        return runs.digest(done["model"])

    simulate(4, run, begin)
    return simulate(2, run, 11)
