"""Elastic training: if ranks fail, the run continues without help from the user.

    restart   starts all ranks again, from the newest complete snapshot: read this file first
    resume    loads the newest undamaged snapshot
    parts     decides which snapshots to save if the ranks' replicas differ (local SGD, DiLoCo)
    heal      the ranks that are still alive repeat the interrupted step (Open MPI 5)
    buddy     keeps a copy of each rank's own state, in the memory of another rank

    minidl run -n 4 --restarts 3 script.py       script.py calls elastic.run(train, state, n_steps)
    minidl run -n 4 --heal script.py

Test: tests/elastic/, tests/chaos/   Tutorial: tutorials/21_fault_tolerance.py
"""

from minidl.elastic.restart import run
