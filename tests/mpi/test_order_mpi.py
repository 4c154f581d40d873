"""The order of wrappers that docs/transports.md states, on real processes."""

import pytest

from tests.comm.transport.test_order import stated
from tests.mpi.launch import mpiexec

pytestmark = pytest.mark.mpi

SCRIPT = '''
"""Prints the layers of each rank's transport."""
import numpy as np
from minidl.comm import ring
from minidl.comm.observe.ledger import Ledger
from minidl.comm.observe.watch import Watch
from minidl.comm.transport.background import Background
from minidl.comm.transport.throttled import Throttled
from minidl.course.tutorial import launch
from tests.comm.transport.test_order import layers

def main(t, args):
    ledger = Ledger(t)
    for u in (ledger, Background(ledger).transport):
        print(f"layers {' '.join(layers(u))}\\n", end="", flush=True)
    inside = Ledger(t.innermost)
    wrong = Throttled(inside, t.inner.links)
    inside.reset()  # what making it took
    for name, counter, u in (("outside", ledger, ledger), ("inside", inside, wrong)):
        ring.all_reduce(u, np.ones(10))
        sent = counter.count(label="ring.all_reduce")
        formula = ring.bytes_sent(10, 8, t.size, t.rank)
        print(f"{name} {sent.bytes_sent - formula} {sent.messages_sent}\\n", end="", flush=True)

if __name__ == "__main__":
    launch(main, ranks=2)
'''


def test_real_ranks_on_a_slow_network_have_the_stated_order(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    run = mpiexec(2, path, timeout=60, env={"MINIDL_NET": "1Gbit,50us"}, check=True)
    lines = sorted(line for line in run.stdout.splitlines() if line)
    order = stated("MPITransport")
    assert order[0] == "Nccl"
    assert lines.count("layers " + " ".join(order[1:])) == 4, run.stdout
    assert lines.count("outside 0 2") == 2, "two messages, the formula's bytes"
    assert lines.count("inside 32 4") == 2, "and with each one a stamp of 16 bytes"
