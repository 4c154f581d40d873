"""A Kernel that is kept runs the text that its files have now."""

import os
import time

import numpy as np
import pytest

import minidl.cuda as cuda
from minidl.cuda.host.includes import LOOK_S

HEAD = '#include "value.cuh"\n'
SETS = 'extern "C" __global__ void %s(float* x) { x[0] = %s; }\n'


@pytest.fixture
def files(tmp_path):
    """(the .cu file, its header, write): write(file, text) waits first, as a person does."""
    def write(file, text):
        time.sleep(2 * LOOK_S)
        file.write_text(text)

    file, header = tmp_path / "k.cu", tmp_path / "value.cuh"
    file.write_text(HEAD + SETS % ("one", "VALUE") + SETS % ("two", "2 * VALUE"))
    header.write_text("#define VALUE 1\n")
    return file, header, write


def result(kernel):
    x = np.zeros(1, np.float32)
    kernel(1, 1, (x,))
    return x[0]


@pytest.mark.parametrize("form", ["auto", "fibre", "check"])
def test_a_kept_kernel_runs_the_edited_file_and_header(files, form):
    file, header, write = files
    one, two = cuda.kernel(file, "one", form=form), cuda.kernel(file, "two", form=form)
    assert (result(one), result(two)) == (1, 2)
    write(header, "#define VALUE 3\n")
    assert (result(one), result(two)) == (3, 6)  # each of those that are kept
    write(file, HEAD + SETS % ("one", "-VALUE") + SETS % ("two", "VALUE"))
    assert (result(two), result(one)) == (3, -3)


def test_every_one_of_many_kept_kernels_looks(files):
    file, header, write = files
    kernels = [cuda.kernel(file, name) for name in ("one", "two") for _ in range(3)]
    assert [result(k) for k in kernels] == [1, 1, 1, 2, 2, 2]
    write(header, "#define VALUE 3\n")
    for _ in range(3):  # the first one looks often, and alone
        assert result(kernels[0]) == 3
        time.sleep(LOOK_S)
    assert [result(k) for k in kernels] == [3, 3, 3, 6, 6, 6]


def test_a_kernel_without_arrays(tmp_path):
    """It takes another way to its launch: arguments.Signature.names_objects."""
    file = tmp_path / "k.cu"
    text = "__device__ int state; extern \"C\" __global__ void set(int v) { state = v + %d; }"
    file.write_text(text % 1)
    kernel = cuda.kernel(file)
    kernel(1, 1, (5,))
    assert kernel.get_global("state") == 6
    time.sleep(2 * LOOK_S)
    file.write_text(text % 2)
    kernel(1, 1, (5,))
    assert kernel.get_global("state") == 7


def test_a_mistake_in_the_edit_is_an_error_until_it_is_gone(files):
    file, header, write = files
    kernel = cuda.kernel(file, "one")
    assert result(kernel) == 1
    write(header, "#define VALUE nothing\n")
    for _ in range(2):
        with pytest.raises(cuda.KernelError, match="nothing"):
            result(kernel)
    write(header, "#define VALUE 4\n")
    assert result(kernel) == 4


def test_a_file_that_is_away_is_no_edit(files):
    """Some editors remove a file before they write it."""
    file, header, write = files
    kernel = cuda.kernel(file, "one")
    assert result(kernel) == 1
    time.sleep(2 * LOOK_S)
    header.unlink()
    assert result(kernel) == 1
    write(header, "#define VALUE 5\n")
    assert result(kernel) == 5


def test_an_edit_of_the_same_length_at_the_same_date(files):
    """As an editor that writes another file and renames it, within a tick of the clock."""
    file, header, write = files
    kernel = cuda.kernel(file, "one")
    assert result(kernel) == 1
    date = header.stat().st_mtime_ns
    other = header.with_name("other")
    write(other, "#define VALUE 7\n")
    os.utime(other, ns=(date, date))
    other.rename(header)
    assert result(kernel) == 7


def test_a_new_header_beside_the_file_comes_before_the_projects(tmp_path):
    file = tmp_path / "k.cu"
    file.write_text('#include "gelu.cuh"\n#ifndef VALUE\n#define VALUE 1\n#endif\n'
                    + SETS % ("one", "VALUE"))
    kernel = cuda.kernel(file)
    assert result(kernel) == 1
    time.sleep(2 * LOOK_S)
    file.with_name("gelu.cuh").write_text("#define VALUE 2\n")
    assert result(kernel) == 2
