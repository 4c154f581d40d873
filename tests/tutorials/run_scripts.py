"""Runs tutorials on MPI, one after the other in the same processes: python, NumPy and scikit-learn
start once. `mpiexec -n 4 python run_scripts.py "07_ring.py --steps 5" ...`

Rank 0 prints a line before each; the first that does not end with status 0 ends all. There is no
matplotlib here: pictures would take rank 0 as long as all else, and the runs in one process draw.
"""

import gc
import runpy
import shlex
import sys

HEAD = "=== "


def main(commands):
    from minidl.comm.transport.supervised import launched_as

    sys.modules["matplotlib"] = None  # as if it were not installed
    for command in commands:
        if launched_as()[0] == 0:
            print(f"{HEAD}{command}", flush=True)
        gc.collect()  # the one before leaves nothing to be counted
        sys.argv = shlex.split(command)
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise


if __name__ == "__main__":
    main(sys.argv[1:])
