"""Elastic training: a run that goes on by itself when ranks fail.

    restart   all ranks again, from the newest complete snapshot: start here
    resume    load the newest snapshot that is whole
    parts     what is saved of replicas that differ (local SGD, DiLoCo)
    heal      the ranks that are left go on, at the interrupted step (Open MPI 5)
    buddy     what only one rank has also on another one, in memory

    minidl run -n 4 --restarts 3 script.py            elastic.run(train, state, n_steps) in it
    minidl run -n 4 --heal script.py

Test: tests/elastic/, tests/chaos/   Tutorial: tutorials/21_fault_tolerance.py
"""

from minidl.elastic.restart import run
