"""A test cluster in one machine: hosts with slow links and real TCP between them, under mpiexec.

    sudo .venv/bin/python benchmarks/cluster.py --hosts 2 --per-host 2 --mbit 100 script.py
    make cluster                                     the same with bench_topologies.py

    namespace minidl-PID-K-host0                     namespace minidl-PID-K-host1
    rank 0  rank 1 -- eth0                           eth0 -- rank 2  rank 3
                       |     namespace minidl-PID-K-switch     |
                       +-- port0 ------ bridge br0 ------ port1 --+

Every host is a network namespace of Linux, which has its own network stack. One cable (a veth pair)
joins the host to a bridge. The bridge also has its own namespace, so nothing changes in the
machine's own network. A token bucket (`tc tbf`) at both ends of each cable limits the cable to
`mbit` Mbit/s in each direction. gso_max_segs makes TCP send packets of one segment, as on a real
wire. Without gso_max_segs one packet with one header could hold up to 64 KiB.

MPICH starts its proxies by ssh. Here enter_host.sh replaces ssh, and the name of the namespace is
the name of the host. So MPI treats a namespace as a machine. Ranks in one namespace use shared
memory, and ranks in different namespaces use TCP (UCX_TLS).

The cluster removes everything that it made: at the end, after an exception, ctrl-C, SIGTERM and
SIGHUP. No process can catch SIGKILL. After a SIGKILL the next cluster finds the old namespaces by
the pid in their names, and removes them. Processes that still run in a namespace are ended first.

Sources: ip-netns(8), tc-tbf(8); MPICH's Hydra manual for the launcher's arguments.
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
ETHERNET = 14  # header bytes of a frame. The interface counters and tbf count these bytes, too
MTU = 1500
HEADERS = ETHERNET + 20 + 32  # Ethernet, IPv4, TCP with time stamps
SEGMENT = MTU - 20 - 32  # payload bytes of a full packet

_NAME = re.compile(r"minidl-(\d+)-\d+-(switch|host\d+)")
_number = itertools.count()
_PLACE = Path("/var/run/netns")  # where ip keeps the names of namespaces


class ClusterError(Exception):
    """Raised if no cluster can be built here. The message says why and what to do."""


class Cluster(NamedTuple):
    """A cluster that has been built. hosts: the names of the hosts' namespaces. mbit: the rate of
    each link in Mbit/s."""

    hosts: list
    mbit: float

    def run(self, *command, per_host=1, **options):
        """Runs a Python script with arguments on per_host ranks of every host. Host 0 has the first
        per_host ranks, and so on. options: more arguments of subprocess.run. Returns
        the result of subprocess.run.

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
                # mpiexec runs on the first host, because the other hosts' proxies must reach it.
                *enter(self.hosts[0]),
                *mpiexec,
                *("-localhost", _address(0), "-hosts", places, "-n", str(n)),
                *(sys.executable, "-m", "minidl.cli.rank", *map(str, command)),
            ],
            env=env,
            **options,
        )


def enter(namespace):
    """Returns the words that make a command run in a namespace. Put them before the command."""
    return ["ip", "netns", "exec", namespace]


@contextlib.contextmanager
def cluster(hosts=2, mbit=200.0):
    """Builds a cluster, yields a Cluster, and removes the cluster. Raises ClusterError if no
    cluster can be built.

    The default of 200 Mbit/s is slow enough for two cores to handle the packets of four ranks.
    """
    if reason := why_not():
        raise ClusterError(reason)
    if not 1 <= hosts <= 250:
        raise ValueError(f"a cluster has 1 to 250 hosts; got {hosts}")
    if not mbit > 0:
        raise ValueError(f"mbit, the rate of a link, must be positive; got {mbit}")
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
    """Returns None if a cluster can be built, otherwise a sentence that names what is missing."""
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
    """Tries the three things that a container or a small Linux kernel may refuse. Returns None if
    all three things work, otherwise the reason of the failure."""
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
    """Removes the clusters of processes that have ended."""
    _remove(
        [name for name in _namespaces() if (m := _NAME.fullmatch(name)) and not _alive(int(m[1]))]
    )


def _build(switch, hosts, mbit):
    _ip("netns", "add", switch)
    # Without stp_state 0 the bridge first searches for other bridges for 30 s.
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
    # `burst` is the number of bytes that pass without waiting. It is as small as the kernel's
    # timers allow, so that the limit also slows short messages. A packet that waits longer than 400
    # ms is dropped. But TCP's windows are so small that no packet waits so long.
    burst = max(4 * (MTU + ETHERNET), int(mbit * 1e6 / 8 * 200e-6))
    rate = ("rate", f"{mbit * 1e6:.0f}bit", "burst", str(burst), "latency", "400ms")
    _call("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *rate)


def _address(host):
    return f"10.77.0.{host + 1}"  # private: these namespaces have no route to other networks


def power_off(host):
    """Cuts a host off from the network, so that it answers no message. Then kills all processes of
    the host."""
    network = os.stat(_PLACE / host).st_ino
    _ip("netns", "del", host)  # removes only the name; running processes keep the namespace
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
    except OSError:  # the process has ended
        return None


def _remove(names):
    """Ends the processes in these namespaces. Removes the namespaces with their devices."""
    for then in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 2
        while (pids := _pids(names)) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, then)
            time.sleep(0.05)
    for name in names:
        # stderr is not shown, because another process may remove the same old cluster at this
        # moment. This is no error.
        subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
    left = sorted(set(names) & set(_namespaces()))
    if left:
        raise ClusterError(f"cannot remove the namespaces {', '.join(left)}. Remove each "
                           "namespace by: sudo ip netns del NAME")


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
    """In the `with` block, the first SIGTERM or SIGHUP raises SystemExit, as ctrl-C raises
    KeyboardInterrupt. Then the cluster is removed. Later signals are ignored, because they would
    interrupt this removal."""
    if threading.current_thread() is not threading.main_thread():
        raise ClusterError("a test cluster must be built in the main thread, because only "
                           "this thread gets the signals")
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
    """Runs a command. Returns the output. If the command fails, raises ClusterError with the
    command's stderr."""
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
