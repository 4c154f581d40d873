"""A test cluster in one machine: hosts joined by slow links, real TCP between them, mpiexec across.

    sudo .venv/bin/python benchmarks/cluster.py --hosts 2 --per-host 2 --mbit 100 script.py
    make cluster                                     the same with bench_topologies.py

    namespace minidl-PID-K-host0                     namespace minidl-PID-K-host1
    rank 0  rank 1 -- eth0                           eth0 -- rank 2  rank 3
                       |     namespace minidl-PID-K-switch     |
                       +-- port0 ------ bridge br0 ------ port1 --+

Every host is a network namespace of Linux: a network stack of its own, with one cable (a veth pair)
to a bridge, which has a namespace to itself too, so that the machine's own network is never
touched. A token bucket (`tc tbf`) at both ends of each cable lets `mbit` Mbit/s pass in each
direction. TCP is told to make packets of one segment (gso_max_segs), as they travel on a real wire:
else up to 64 KiB cross as one packet with one header.

MPICH starts its proxies by ssh; here enter_host.sh stands in for it, and the namespace's name is
the host's. So MPI takes the ranks of one namespace for one machine: they talk through shared
memory, the others by TCP (UCX_TLS).

All that is made is removed again: at the end, after an exception, ctrl-C, SIGTERM and SIGHUP. After
SIGKILL, which nobody can catch, the next cluster removes it: the names carry the pid. Processes
that still run in a namespace are ended first.

Sources: ip-netns(8), tc-tbf(8); the launcher's arguments are MPICH's Hydra manual's.
Test: tests/benchmarks/test_cluster.py   Used by: bench_topologies.py
"""

import argparse
import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

from minidl.cli import machine

ROOT = Path(__file__).resolve().parents[1]
ENTER_HOST = Path(__file__).with_name("enter_host.sh")
ETHERNET = 14  # header bytes of a frame, which the interface counters and tbf count
MTU = 1500
HEADERS = ETHERNET + 20 + 32  # and those of IPv4 and of TCP with time stamps
SEGMENT = MTU - 20 - 32  # payload bytes of a full packet

_NAME = re.compile(r"minidl-(\d+)-\d+-(switch|host\d+)")
_number = itertools.count()
_PLACE = Path("/var/run/netns")  # where ip keeps their names


class ClusterError(Exception):
    """No cluster can be built here; the message says why and what to do."""


class Cluster(NamedTuple):
    """hosts: names of the hosts' namespaces; mbit: what each link lets pass, in Mbit/s."""

    hosts: list
    mbit: float

    def run(self, *command, per_host=1, **options):
        """Run a Python script, with arguments, on per_host ranks of every host: host 0 has the
        first ranks, and so on. options: subprocess.run's; returns what that returns.

        The ranks abort together, as under `minidl run`.
        """
        n = per_host * len(self.hosts)
        mpiexec = [machine.find_mpiexec(), "-launcher", "ssh", "-launcher-exec", str(ENTER_HOST)]
        places = ",".join(f"{host}:{per_host}" for host in self.hosts)
        env = machine.environment(n) | {
            "UCX_TLS": "tcp",
            "UCX_NET_DEVICES": "eth0",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        return subprocess.run(
            [
                *enter(self.hosts[0]),  # the proxies of the other hosts must reach mpiexec
                *mpiexec,
                *("-localhost", _address(0), "-hosts", places, "-n", str(n)),
                *(sys.executable, "-m", "minidl.cli.rank", *map(str, command)),
            ],
            env=env,
            **options,
        )


def enter(namespace):
    """The command line that runs the command line after it in a namespace."""
    return ["ip", "netns", "exec", namespace]


@contextlib.contextmanager
def cluster(hosts=2, mbit=200.0):
    """Build a cluster, give it as a Cluster, remove it. Raises ClusterError where it cannot be.

    200 Mbit/s: so slow that two cores keep up with what four ranks send, headers included.
    """
    if reason := why_not():
        raise ClusterError(reason)
    if not 1 <= hosts <= 250:
        raise ValueError(f"a cluster has 1 to 250 hosts; got {hosts}")
    if not mbit > 0:
        raise ValueError(f"a link lets some Mbit/s pass; got {mbit}")
    remove_stale()
    prefix = f"minidl-{os.getpid()}-{next(_number)}-"
    names = [f"{prefix}host{i}" for i in range(hosts)]
    with _signals_as_exceptions():
        try:
            _build(f"{prefix}switch", names, mbit)
            yield Cluster(names, mbit)
        finally:
            _remove([name for name in _namespaces() if name.startswith(prefix)])


def why_not():
    """None where a cluster can be built, else a sentence that says what is missing."""
    if not sys.platform.startswith("linux"):
        return f"the test cluster needs Linux's network namespaces; this is {sys.platform}"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"the test cluster needs the command {tool}: sudo apt install iproute2"
    if os.geteuid() != 0:
        return "the test cluster needs root, to make network namespaces: sudo make cluster"
    if " " in f"{ENTER_HOST}{sys.executable}":
        return ("the test cluster needs paths without a space, as MPICH starts no others on "
                f"another host: move {ROOT}")
    mpiexec = machine.find_mpiexec()
    if mpiexec is None:
        return "the test cluster needs MPICH's mpiexec: pip install mpich"
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True).stdout
    if "HYDRA" not in version:
        return f"the test cluster needs MPICH's mpiexec; {mpiexec} is another's. pip install mpich"
    return _why_not_allowed()


def _why_not_allowed():
    """Try the three things that a container or a small kernel may refuse."""
    name = f"minidl-{os.getpid()}-{next(_number)}-switch"
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "add", "port0", "type", "veth", "peer", "name", "eth0")
        _limit(name, "port0", 1.0)
    except ClusterError as error:
        return f"{error}. The test cluster needs a kernel with veth and tbf, and CAP_SYS_ADMIN"
    finally:
        _remove([n for n in _namespaces() if n == name])
    return None


def remove_stale():
    """Remove the clusters of processes that are no more."""
    _remove(
        [name for name in _namespaces() if (m := _NAME.fullmatch(name)) and not _alive(int(m[1]))]
    )


def _build(switch, hosts, mbit):
    _ip("netns", "add", switch)
    # no search for other bridges: it would hold the first packets back for 30 s
    _ip("-n", switch, "link", "add", "br0", "type", "bridge", "stp_state", "0")
    _ip("-n", switch, "link", "set", "br0", "up")
    for i, host in enumerate(hosts):
        port = f"port{i}"
        _ip("netns", "add", host)
        cable = ("type", "veth", "peer", "name", "eth0", "netns", host)
        _ip("-n", switch, "link", "add", port, *cable)
        _ip("-n", switch, "link", "set", port, "master", "br0", "up")
        _ip("-n", host, "link", "set", "lo", "up")
        _ip("-n", host, "addr", "add", f"{_address(i)}/24", "dev", "eth0")
        _ip("-n", host, "link", "set", "eth0", "mtu", str(MTU), "gso_max_segs", "1", "up")
        _limit(host, "eth0", mbit)
        _limit(switch, port, mbit)


def _limit(namespace, device, mbit):
    # What may pass at once: as little as the kernel's timers can follow, so that short messages are
    # slowed, too. What waits longer than 400 ms is dropped; TCP's windows never get there.
    burst = max(4 * (MTU + ETHERNET), int(mbit * 1e6 / 8 * 200e-6))
    rate = ("rate", f"{mbit * 1e6:.0f}bit", "burst", str(burst), "latency", "400ms")
    _call("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *rate)


def _address(host):
    return f"10.77.0.{host + 1}"  # seen by nobody else: these namespaces have no way out


def power_off(host):
    """A host is gone at once: it answers nobody, then all that ran on it is killed."""
    network = os.stat(_PLACE / host).st_ino
    _ip("netns", "del", host)  # its name; what runs in it has it until the end
    while pids := [pid for pid in _all_pids() if _network_of(pid) == network]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _all_pids():
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _network_of(pid):
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:  # it has ended
        return None


def _remove(names):
    """End what runs in these namespaces, and remove them with their devices."""
    for then in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 2
        while (pids := _pids(names)) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, then)
            time.sleep(0.05)
    for name in names:
        # another process may remove the same stale one at this moment
        subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
    left = sorted(set(names) & set(_namespaces()))
    if left:
        raise ClusterError(f"cannot remove {', '.join(left)}: sudo ip netns del NAME")


def _pids(names):
    lines = (subprocess.run(["ip", "netns", "pids", n], capture_output=True) for n in names)
    return {int(pid) for done in lines for pid in done.stdout.split()}


def _namespaces():
    return [line.split()[0] for line in _call("ip", "netns", "list").splitlines() if line]


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def _signals_as_exceptions():
    """SIGTERM and SIGHUP raise SystemExit here, as ctrl-C raises KeyboardInterrupt; once. A second
    one would interrupt the removal."""
    if threading.current_thread() is not threading.main_thread():
        raise ClusterError("a test cluster is built in the main thread, which gets the signals")
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(number, _):
        for s in signals:
            signal.signal(s, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    before = {s: signal.signal(s, stop) for s in signals}
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


def _ip(*arguments):
    return _call("ip", *arguments)


def _call(*command):
    """Run a command, return its output; ClusterError with its own words where it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ClusterError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description="Run a script on a test cluster in this machine.")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--per-host", type=int, default=2, metavar="RANKS")
    parser.add_argument("--mbit", type=float, default=200.0, help="of each link (default 200)")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    try:
        with cluster(args.hosts, args.mbit) as made:
            done = made.run(args.script, *args.arguments, per_host=args.per_host)
    except (ClusterError, ValueError) as error:
        sys.exit(f"{parser.prog}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
