"""00  Hello, ranks.                                           2 minutes, needs: nothing

Goal: see that the installation works. Several copies of this program run. Each copy is a
rank and holds one number. At the end every rank holds the sum of all numbers. This is your first
all-reduce.

    mpirun -n 4 python tutorials/00_hello.py          four processes
    minidl run -n 4 tutorials/00_hello.py             the same; minidl finds mpirun
    python tutorials/00_hello.py --sim 4              four simulated ranks in one process

There are p ranks. Rank r gives the number r, and every rank receives the sum

    0 + 1 + ... + (p - 1)  =  p (p - 1) / 2            6 for p = 4

Is something missing? `minidl doctor` prints what to install. The next tutorial is 01_autograd.py.
07_ring.py shows how the ranks make the sum.
"""

import numpy as np

from minidl.backend import device_of
from minidl.cli import doctor
from minidl.comm import ring
from minidl.course.tutorial import Table, gather, launch, put, say


def main(t, args):
    numbers = gather(t, t.rank)
    say(t, f"{t.size} ranks met: {numbers}")

    x = put(args, np.array([t.rank], np.float32))
    ring.all_reduce(t, x)  # every rank now holds the sum in x

    table = Table(t)
    if t.rank == 0:  # only rank 0 looks for what is installed
        mpi = doctor.mpi_library() if doctor.installed("mpi4py") else {}
        compiler = doctor.cpp_compiler()
        table.row("MPI", f"{mpi['vendor']} {mpi['version']}" if "vendor" in mpi else "no")
        table.row("C++ compiler", " ".join(compiler) if compiler else "no")
        table.row("CuPy", doctor.installed("cupy"))
        table.row("the array is on", device_of(x))
    table.row("ranks that met", t.size, len(set(numbers)) if numbers else t.size, "exact")
    table.row("sum of ranks", int(x[0]), t.size * (t.size - 1) // 2, "exact")
    return table


if __name__ == "__main__":
    launch(main, ranks=4)
