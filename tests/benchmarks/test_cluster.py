"""The test cluster carries what the ledger counts, is as slow as asked, leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from benchmarks import cluster as module
from benchmarks.cluster import ROOT, Cluster, ClusterError, cluster
from tests.conftest import whole_form

FOLDER = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def can_build():
    """Skip, saying why, where no cluster can be built."""
    if reason := module.why_not():
        pytest.skip(reason)


def namespaces_of(pid):
    return [name for name in module._namespaces() if name.startswith(f"minidl-{pid}-")]


def alive(pid):
    """Whether the process runs; a zombie that nobody has waited for yet does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.mpi
@whole_form
def test_the_bridge_carries_what_the_ledger_counts_and_no_faster_than_asked(can_build, tmp_path):
    out, mbit, n_bytes = tmp_path / "figures.json", 40, 64 << 10
    options = ["--kib", "64", "--mbit", str(mbit), "--rounds", "1", "--out", str(out)]
    command = [sys.executable, FOLDER / "bench_topologies.py", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(out.read_text())["figures"]["sizes_kib"]["64"]
    n_rounds = 2  # one to warm up
    crossing = {name: row["ledger_bytes"] / n_bytes / n_rounds for name, row in rows.items()}
    assert crossing == {
        "ring": 3,  # 2 links x 2 (p-1)/p K
        "ring, dealt": 6,  # all 4 links cross
        "tree": 2,  # K there, K back
        "double tree": 4,  # for each half of K two edges of its tree cross, there and back
        "halving-doubling": 4,  # the first halving crosses, K/2 of each of 4 ranks; and the last
        "hierarchical": 2,  # 2 (m-1)/m K/g of each of 4 ranks
        "by leaders": 2,  # 2 (m-1)/m K of each of 2 leaders
    }
    assert all(row["ok"] for row in rows.values()), rows
    # A host sends half of what crosses; the bucket lets 4 packets pass at once at each end.
    n_free = 2 * 4 * (module.MTU + module.ETHERNET)
    for name, row in rows.items():
        least_s = (crossing[name] / 2 * n_bytes - n_free) * 8e-6 / mbit
        assert min(row["times_s"]) > least_s, name


PACKET_SIZE = """
import numpy as np
from minidl.comm import ring, world

def sent(what):
    return int(open(f"/sys/class/net/eth0/statistics/tx_{what}").read())

t = world()
ring.all_reduce(t, np.ones(1 << 18))
if t.rank == 0:
    print("bytes a packet:", sent("bytes") / sent("packets"))
"""


@pytest.mark.mpi
def test_packets_are_as_large_as_on_a_wire(can_build, tmp_path):
    script = tmp_path / "packet_size.py"
    script.write_text(PACKET_SIZE)
    # so fast that the bucket, which would cut larger ones, is 125 KB
    with cluster(mbit=5000) as made:
        done = made.run(script, capture_output=True, text=True, timeout=60, check=True)
    full = module.MTU + module.ETHERNET
    # a busy host acknowledges each packet that it got: then half of what it sends is small, or more
    assert full / 3 < float(done.stdout.split(":")[1]) <= full


def test_what_was_built_is_removed_after_an_exception(can_build):
    links = ["ip", "-brief", "link"]
    own_network = subprocess.check_output(links)
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with pytest.raises(ZeroDivisionError), cluster(hosts=3, mbit=1000) as made:
        assert len(made.hosts) == 3 and len(namespaces_of(os.getpid())) == 4
        module.remove_stale()
        assert len(namespaces_of(os.getpid())) == 4, "it is not stale: this process is alive"
        assert subprocess.check_output(links) == own_network, "the machine's own devices"
        raise ZeroDivisionError
    assert namespaces_of(os.getpid()) == []
    assert handlers == [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


def test_what_was_built_is_removed_when_building_fails(can_build, monkeypatch):
    limit = module._limit

    def fails_on_the_second_host(namespace, device, mbit):
        limit(namespace, "eth9" if namespace.endswith("host1") else device, mbit)

    monkeypatch.setattr(module, "_limit", fails_on_the_second_host)
    with pytest.raises(ClusterError, match="tc -n .*host1 .*eth9"), cluster():
        pass
    assert namespaces_of(os.getpid()) == []


def start_sleeping_ranks(tmp_path):
    """(process, pids of its ranks): cluster.py with two ranks that sleep."""
    script = tmp_path / "sleep.py"
    script.write_text("import os, time\nprint('rank', os.getpid(), flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, FOLDER / "cluster.py", "--per-host", "1", script]
    # a shell that starts pytest in the background makes it, and so this process, ignore ctrl-C
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    pids = [int(process.stdout.readline().split()[1]) for _ in range(2)]
    assert len(namespaces_of(process.pid)) == 3 and all(map(alive, pids))
    return process, pids


@pytest.mark.mpi
@pytest.mark.parametrize("sent, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_ranks_and_removes_everything(can_build, tmp_path, sent, status):
    process, pids = start_sleeping_ranks(tmp_path)
    process.send_signal(sent)
    time.sleep(0.02)
    process.send_signal(sent)  # the impatient user's second ctrl-C
    process.communicate(timeout=20)
    # the second one may also come when all is removed, and find the process at its exit
    assert process.returncode in (status, -sent)
    assert namespaces_of(process.pid) == [] and not any(map(alive, pids))


@pytest.mark.mpi
def test_what_a_killed_process_left_is_removed_by_the_next(can_build, tmp_path):
    process, pids = start_sleeping_ranks(tmp_path)
    process.kill()
    process.wait()
    assert len(namespaces_of(process.pid)) == 3, "SIGKILL cannot be caught"
    with cluster(hosts=1):
        assert namespaces_of(process.pid) == [] and not any(map(alive, pids))
    process.stdout.close()


@pytest.mark.parametrize(
    "patch, words",
    [
        (("sys.platform", "darwin"), "needs Linux"),
        (("os.geteuid", lambda: 1000), "needs root"),
        (("shutil.which", lambda *_, **__: None), "apt install iproute2"),
    ],
    ids=["macOS", "not root", "no ip"],
)
def test_elsewhere_a_sentence_says_what_is_missing(monkeypatch, patch, words):
    if patch[0] != "sys.platform":
        monkeypatch.setattr("sys.platform", "linux")
    if patch[0] == "os.geteuid":
        monkeypatch.setattr("shutil.which", lambda *_, **__: "/bin/true")
    monkeypatch.setattr(*patch)
    with pytest.raises(ClusterError, match=words), cluster():
        pass


def test_hosts_are_named_to_mpiexec_in_order(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda command, **options: (command, options))
    command, options = Cluster(["a", "b"], 10).run("x.py", 3, per_host=2, check=True)
    text = " ".join(command)
    assert text.startswith("ip netns exec a ") and "-hosts a:2,b:2 -n 4" in text
    assert text.endswith("minidl.cli.rank x.py 3") and options["check"]
    assert options["env"]["UCX_TLS"] == "tcp", "between hosts by the link, not by shared memory"
