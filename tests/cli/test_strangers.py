"""Other programs connect to every port of a run, in every bad way: it goes on and ends well."""

import json
import os
import random
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from minidl.cli import rank
from minidl.cli.supervisor import Supervisor
from minidl.comm.observe import door
from tests.cli.faults import ROOT, minidl_run
from tests.cli.test_supervisor import Mpiexec, run_and_close
from tests.conftest import EVERY, whole_form
from tests.mpi.launch import PYTHONS, require_mpi

N_STRANGERS = 1000 if EVERY else 60

# Two ranks train until the file `over` is there. They write their ports, the launcher's, and what
# a rank has really sent to each rank's port, for the replays.
SCRIPT = """\
import json, os, pathlib, socket, sys
import numpy as np
from minidl.comm import objects, ring, tree, world
from minidl.comm.observe import door

folder = pathlib.Path(sys.argv[1])
t = world()
channel, other = t._lookout._channel, 1 - t.rank
sent, proof = [], door.proof
door.proof = lambda *asked: sent.append(proof(*asked)) or sent[-1]
channel.connect(other, say="state?").answer()
door.proof = proof
launcher = socket.socket(fileno=os.dup(int(os.environ["MINIDL_LINK"].partition(":")[0])))
mine = [channel.door.listener.getsockname()[1], launcher.getpeername()[1], sent[0].decode()]
everybody = objects.all_gather(t, mine)
if t.rank == 0:
    (folder / "new").write_text(json.dumps(everybody))
    (folder / "new").rename(folder / "ports")
steps, over = 0, np.zeros(1)
while not over[0]:
    over[0] = t.rank == 0 and (folder / "over").exists()
    over = tree.broadcast(t, over)
    ring.all_reduce(t, np.ones(100))
    steps += 1
print(f"rank {t.rank} has done its steps")
"""

# What a stranger does, given its connection and its random numbers; then it waits for the end.
KINDS = {
    "random bytes": lambda c, r, _: c.sendall(r.randbytes(r.randrange(1, 5000))),
    "half a line": lambda c, r, _: c.sendall(b'{"say": "born", "tok'[:r.randrange(1, 20)]),
    "HTTP": lambda c, r, _: c.sendall(b"GET / HTTP/1.0\r\n\r\n"),
    "TLS": lambda c, r, _: c.sendall(b"\x16\x03\x01\x02\x00\x01\x00" + r.randbytes(505)),
    "deep JSON": lambda c, r, _: c.sendall(b"[" * r.randrange(1000, 200_000) + b"\n"),
    "a huge line": lambda c, r, _: c.sendall(b"a" * r.randrange(1 << 20, 1 << 22)),
    "lines of JSON": lambda c, r, _: c.sendall(b'{"say": "born", "rank": 0}\n7\n[]\n' * 9),
    "silence": lambda c, r, _: None,
    "a byte at a time": lambda c, r, _: [(c.sendall(b"0"), time.sleep(0.1)) for _ in range(90)],
    "it hangs up": lambda c, r, _: c.shutdown(socket.SHUT_RDWR),
    "a replay": lambda c, r, sent: c.sendall(sent + b'{"from": 0, "say": "failing"}\n'),
    "a wrong token": lambda c, r, _: c.sendall(
        door.proof(r.randbytes(16).hex(), door.new_caller(), 0) + b'{"say": "born"}\n'),
}


def stranger(number, kind, port, sent, seed):
    """Whether the listener has ended the connection, or the stranger itself."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            KINDS[kind](connection, random.Random(f"{seed} {number}"), sent)
            connection.shutdown(socket.SHUT_WR) if number % 2 and kind == "half a line" else None
            return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:  # the listener was faster
        return True


@whole_form
@pytest.mark.mpi
@pytest.mark.timeout(300)
def test_a_run_goes_on_whoever_connects(tmp_path):
    """Red before: the line `GET / HTTP/1.0` ended the launcher with a traceback."""
    require_mpi()
    seed = int(os.environ.get("MINIDL_SEED", time.time_ns() % 10**6))
    print(f"MINIDL_SEED={seed}")
    (tmp_path / "script.py").write_text(SCRIPT)
    with subprocess.Popen(
            [PYTHONS["mpi"], "-m", "minidl", "run", "-n", "2", tmp_path / "script.py", tmp_path],
            cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        try:
            while not (tmp_path / "ports").exists() and run.poll() is None:
                time.sleep(0.02)
            ports = json.loads((tmp_path / "ports").read_text())
            begin = time.monotonic()
            with ThreadPoolExecutor(100) as pool:
                chosen = random.Random(seed)
                ended = []
                for i in range(N_STRANGERS):
                    rank = chosen.randrange(2)  # its port, or the launcher's
                    port, sent = ports[rank][chosen.random() < 0.4], ports[1 - rank][2].encode()
                    kind = list(KINDS)[i % len(KINDS)]
                    ended.append(pool.submit(stranger, i, kind, port, sent, seed))
                assert all(each.result() for each in ended), "a connection did not end"
            print(f"{N_STRANGERS} strangers in {time.monotonic() - begin:.1f} s")
            (tmp_path / "over").touch()
            out, err = run.communicate(timeout=60)
        finally:
            run.kill()
    assert run.returncode == 0, err
    assert out.count("has done its steps") == 2
    assert f"other programs that were turned away: {N_STRANGERS}\n" in err


@pytest.mark.mpi
def test_strangers_who_say_nothing_delay_no_report(tmp_path):
    """Red before: each of them kept the thread that answers for a second."""
    script = tmp_path / "script.py"
    script.write_text(
        "import socket, time\n"
        "import numpy as np\n"
        "from minidl.comm import objects, world\n"
        "t = world()\n"
        "door = t._lookout._channel.door.listener.getsockname()\n"
        "doors = [tuple(each) for each in objects.all_gather(t, door)]\n"
        "silent = [socket.create_connection(doors[1 - t.rank]) for _ in range(30)]\n"
        "print('waits', time.time(), flush=True)\n"
        "t.recv(np.zeros(1), 1 - t.rank)\n")
    require_mpi()
    run = minidl_run("mpi", script, n=2)
    took = time.time() - min(float(words.split()[1]) for words in run.stdout.splitlines())
    assert run.returncode == 1 and "deadlock: ranks 0, 1 can never go on" in run.stderr
    assert took < 10, "2 s, and what a busy machine takes"


@pytest.mark.parametrize("line", [b"GET / HTTP/1.0\r\n", b"7\n", b"[" * 100_000 + b"\n"])
def test_one_line_does_not_end_the_launcher(line):
    """Red before: each of them did."""
    said = []
    s = Supervisor(1, say=said.append)
    _, port, _ = s.environment[rank.SUPERVISOR].split(",")
    with socket.create_connection(("127.0.0.1", int(port))) as link:
        link.sendall(line)
        child = Mpiexec()
        child.ends_at = time.monotonic() + 0.3
        assert run_and_close(s, child) == 0 and not s.ranks
    assert said == ["minidl run: connections of other programs that were turned away: 1\n"]
