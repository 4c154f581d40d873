"""The check of every collective, and what a Watch sends besides, on real processes."""

import pytest

from tests.mpi.launch import mpiexec, under_both

pytestmark = pytest.mark.mpi

# Each case in a group of its own: after a mismatch its messages are in disorder.
SCRIPT = """
import numpy as np
from minidl.comm import ring, scatter_gather, shared_memory, tree, world
from minidl.comm.call_code import CallMismatch
from minidl.comm.observe.ledger import Ledger
from minidl.comm.observe.watch import Watch, control_bytes
from tests.comm.test_call_code import WRONG, right

t = world()

def caught(words, call):
    group = t.subgroup(range(t.size))
    try:
        call(group)
    except CallMismatch as error:
        assert words in str(error) and f"rank {t.rank}: " in str(error), error
        print("caught", words + "\\n", end="", flush=True)

for words, wrong in WRONG.items():
    caught(words.split()[0] + " ", lambda u: wrong(u) if t.rank else right(u))
caught("op differs", lambda u: shared_memory.all_reduce(
    u, np.ones(8, "f4"), np.maximum if t.rank else np.add))
caught("dtype", lambda u: scatter_gather.gather(u, np.ones(8, "f4" if t.rank else "i4")))
large = np.ones(1 << 17)
caught("op", lambda u: ring.all_reduce(u, large, np.maximum if t.rank else np.add))

# a message that nobody has received yet is not taken for a collective's, whatever its tag
sent = [t.isend(np.full(8, t.rank), 1 - t.rank, tag) for tag in (0, 5)]
assert tree.all_reduce(t, np.ones(8))[0] == 2
for tag in (5, 0):
    assert t.recv(np.empty(8, int), 1 - t.rank, tag)[0] == 1 - t.rank
for request in sent:
    request.wait()

for u, control in ((t, 0), (Watch(t), control_bytes(2))):
    ledger = Ledger(u)
    for _ in range(3):
        ring.all_reduce(ledger, np.ones(10))
    count = ledger.count(label="ring.all_reduce")
    assert count.bytes_sent == 3 * ring.bytes_sent(10, 8, 2, t.rank), count
    assert count.messages_sent == 3 * 2 and count.control == 3 * control, count
print("counted\\n", end="", flush=True)
"""


@under_both
def test_ranks_in_different_calls_raise_and_payloads_keep_their_formulas(tmp_path, mpi):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    run = mpiexec(2, path, timeout=60, mpi=mpi, check=True)
    assert run.stdout.count("counted\n") == 2
    # rank 0 of a gather alone receives; elsewhere both ranks see it
    assert run.stdout.count("caught") == 2 * 5 + 1, run.stdout


def test_control_is_sixteen_bytes_for_each_doubling_of_the_ranks():
    from minidl.comm.observe.watch import control_bytes

    assert [control_bytes(n) for n in (1, 2, 3, 4, 5, 8)] == [0, 16, 32, 32, 48, 48]
