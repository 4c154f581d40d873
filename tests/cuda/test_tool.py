"""`minidl kernel check` and `minidl kernel run`, as typed."""

from pathlib import Path

import pytest

from minidl import cuda
from minidl.cli import main as cli
from minidl.cuda import nvrtc, tool

FOLDER = Path(__file__).parent


def test_check_lists_the_kernels_with_their_form(capsys):
    assert cli.main(["kernel", "check", "add3.cu", "-D", "T=double"]) == 0
    out = capsys.readouterr().out
    assert "add3_naive               flat      T* out, const T* a, const T* b, int n" in out
    assert ("sm_90" in out) == (nvrtc.available() is None)


def test_check_lists_templates_and_what_only_a_gpu_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(nvrtc, "available", lambda: "NVRTC is not installed: pip install it")
    path = tmp_path / "mixed.cu"
    path.write_text(
        "template <typename V> __global__ void scale(V* x, V a) { x[threadIdx.x] *= a; }\n"
        "__global__ void meet(int* x) { __syncthreads(); x[0] = 1; }\n"
        '__global__ void ptx(int* x) { asm("trap;"); }\n'
    )
    assert cli.main(["kernel", "check", str(path)]) == 0
    out = capsys.readouterr().out
    assert "scale                    template  V* x, V a" in out
    assert "meet                     fibre     int* x" in out
    assert "mixed.cu:3: ptx uses inline PTX" in out
    assert "for a GPU: not tried. NVRTC is not installed" in out


def test_check_of_a_file_that_does_not_compile_fails(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(nvrtc, "available", lambda: "not tried")
    path = tmp_path / "broken.cu"
    path.write_text("__global__ void broken(int* x) {\n  x[0] = 1\n}\n")
    assert cli.main(["kernel", "check", str(path)]) == 1
    assert "broken.cu:2" in capsys.readouterr().out
    path.write_text("int x;\n")
    assert cli.main(["kernel", "check", str(path)]) == 2
    assert "no __global__ function" in capsys.readouterr().err


SCRIPT = """
import sys
import numpy as np
from minidl.cuda import kernel

x, out = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
for _ in range(3):
    kernel({planted!r}, "guard_off_by_one")(2, {block}, (out, x, 100))
kernel("add3.cu", "add3")(1, 128, (out, x, x + 1, x + 2, 100))
print(out[1], sys.argv[1:])
sys.exit({status})
"""


@pytest.mark.parametrize("block, status, expected", [(64, 0, 1), (50, 0, 0), (50, 3, 3)])
def test_run_watches_every_launch_of_a_python_file(tmp_path, capsys, block, status, expected):
    """A launch with exactly as many threads as elements never meets the wrong guard."""
    path = tmp_path / "mine.py"
    planted = str(FOLDER / "checks" / "planted.cu")
    path.write_text(SCRIPT.format(planted=planted, block=block, status=status))
    assert cli.main(["kernel", "run", str(path), "--an", "argument"]) == expected
    out = capsys.readouterr().out
    assert "6.0 ['--an', 'argument']" in out
    assert "watch: kernels of " in out and "kernels/add3.cu" in out
    assert out.count("planted.cu:6: out of bounds") == (block == 64)  # told once for three launches
    assert out.splitlines()[-1] == ("Errors: 3." if block == 64 else "Errors: 0.")
    first = next(line for line in out.splitlines() if line.startswith("guard_off_by_one"))
    assert first.split() == ["guard_off_by_one", "3", "out", "0", "1,200", "0"]


def test_a_program_under_watch_knows_it_and_does_not_stay_silent(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tool, "SILENCE_S", -1)
    path = tmp_path / "mine.py"
    path.write_text("from minidl import cuda\nimport numpy as np\nx = np.zeros(3, np.float32)\n"
                    "print('watched', cuda.is_watched())\n"
                    "for _ in range(2): cuda.kernel('add3.cu', 'add3')(1, 4, (x, x, x, x, 3))\n")
    assert cli.main(["kernel", "run", str(path)]) == 0
    out = capsys.readouterr().out
    assert "watched True" in out and "watch: 2 launches so far; the last kernel was add3." in out
    assert not cuda.is_watched()


def test_run_without_a_launch_says_so(tmp_path, capsys):
    path = tmp_path / "idle.py"
    path.write_text("print('nothing')")
    assert cli.main(["kernel", "run", str(path)]) == 0
    assert capsys.readouterr().out.endswith("launched no kernel on NumPy arrays, except by minidl"
                                            ".cuda.check.\n")


@pytest.mark.parametrize("argv, words", [
    (["run", "absent.py"], "there is no file absent.py in "),
    (["run", "add3.cu"], "add3.cu is a file of kernels: run a Python file that launches"),
    (["check", "absent.cu"], "no file 'absent.cu' in this folder or in "),
    (["check", "latin.cu"], "cannot read "),
])
def test_a_file_that_will_not_do_is_named(argv, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "add3.cu").touch()
    (tmp_path / "latin.cu").write_bytes(b"// caf\xe9")
    assert cli.main(["kernel", *argv]) == 2
    assert words in capsys.readouterr().err
