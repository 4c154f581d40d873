"""Lines of a kernel's file by each tool that knows them, and a report where there is none."""

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import minidl.cuda as cuda
from minidl.cuda.checks import hooks, lines
from minidl.cuda.host import compiler

FILE = Path(__file__).parent / "planted.cu"
# Apple's tool, as its manual page has it: a line for a place, the innermost frame first
ATOS = """#!/bin/sh
"exec" "{python}" "$0" "$@"
import subprocess, sys
_, o, file, i, full, d, between, offset, *places = sys.argv
assert [o, i, full, d, offset] == ["-o", "-i", "-fullPath", "-d", "-offset"], sys.argv
for place in places:
    text = subprocess.run([{addr2line!r}, "-e", file, "-i", place], capture_output=True, text=True)
    print(between.join(f"f(int*) (in key.so) ({{frame}})" for frame in text.stdout.split()))
"""


def findings():
    """Of two kernels: a guard that is off by one, and a race of which one half is in atomics.h."""
    x = np.ones(100, np.float32)
    report = cuda.check(FILE, 2, 64, (np.zeros(100, np.float32), x, 100), name="guard_off_by_one")
    other = cuda.check(FILE, 2, 64, (np.zeros(16, np.int32), np.arange(100, dtype=np.int32) % 16,
                                     100), name="histogram_without_atomic")
    return report, [(f.kind, f.file, f.line, f.text) for r in (report, other) for f in r.findings]


@pytest.fixture
def only(monkeypatch, tmp_path):
    """Leaves these tools, and the compiler, on the PATH: {name: file, or the text of a script}."""
    before, cxx = findings()[1], compiler.find_compiler().command[0]  # compiled once for all

    def set_path(tools):
        for name, what in {Path(cxx).name: shutil.which(cxx), **tools}.items():
            if what.startswith("#!"):
                (tmp_path / name).write_text(what)
                (tmp_path / name).chmod(0o755)
            else:
                os.symlink(what, tmp_path / name)
        monkeypatch.setenv("PATH", str(tmp_path))
        return before

    return set_path


def script(text):
    return text.format(python=sys.executable, addr2line=shutil.which("addr2line"))


@pytest.mark.skipif(not shutil.which("addr2line"), reason="compares with addr2line")
@pytest.mark.parametrize("name", ["llvm-symbolizer", "llvm-symbolizer-14", "atos"])
def test_another_tool_gives_the_same_lines(only, name):
    tool = script(ATOS) if name == "atos" else shutil.which("llvm-symbolizer")
    if not tool:
        pytest.skip("llvm-symbolizer is not installed")
    wanted = only({name: tool})
    assert Path(lines.symbolizer()).name == name
    assert all(line for _, _, line, _ in wanted) and findings()[1] == wanted


def test_without_a_tool_the_bug_is_named_and_the_report_says_why_no_line_is(only):
    def profile():
        cuda.check(FILE, 2, 64, (np.zeros(100, np.float32), np.ones(100, np.float32), 99),
                   name="guard_off_by_one", profile=True)

    profile()  # compiles it
    wanted = only({})
    report, found = findings()
    assert {kind for kind, *_ in found} == {kind for kind, *_ in wanted}
    assert {(file, line) for _, file, line, _ in found} == {("", 0)}
    first, second, third = str(report).splitlines()[:3]
    assert first == "kernel guard_off_by_one of planted.cu: 1 error"
    assert "lines are not known" in second and "Install binutils" in second
    assert third.startswith("  out of bounds: thread 36 of block 1 reads x[100]")
    assert "line 0" not in str(found)
    with pytest.raises(cuda.KernelError, match="lines are not known.*Install binutils"):
        profile()


def test_on_a_mac_lines_are_copied_beside_the_library_and_read_there(monkeypatch, tmp_path, only):
    monkeypatch.setattr(sys, "platform", "darwin")
    said = tmp_path / "said"
    only({"dsymutil": f"#!/bin/sh\necho dsymutil $1 > {said}\n", "addr2line": "#!/bin/sh\n",
          "atos": f"#!/bin/sh\necho atos $2 >> {said}\necho 'f (in k.so) (/a/b.cu:14)'\n"})
    file = tmp_path / "k.so"
    lines.keep_lines(file)
    kept = tmp_path / "k.so.dSYM" / "Contents" / "Resources" / "DWARF" / "k.so"
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert lines.lines_of(file, {8}) == {8: ("b.cu", 14)}
    assert said.read_text() == f"dsymutil {file}\natos {kept}\n"


def test_warnings_leave_no_listing_behind(monkeypatch, tmp_path):
    """zig writes `-.s` into the working directory for `-S -o /dev/null`; this one does as zig."""
    real = compiler.find_compiler().command
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cxx").mkdir()
    like = tmp_path / "cxx" / "g++"
    like.write_text('#!/bin/sh\ncase "$*" in *"-S"*"-o /dev/null"*) touch ./-.s;; esac\n'
                    f'exec {" ".join(real)} "$@"\n')
    like.chmod(0o755)
    monkeypatch.setenv("MINIDL_CXX", str(like))
    code = "int f(int* p) { int x; if (*p) p[0] = 1; return x; }\n"
    found = hooks.compiler_warnings(f'# 1 "k.cu"\n{code}')
    assert [(file, line, option) for file, line, option, _ in found] == [
        ("k.cu", 1, "uninitialized")]
    assert os.listdir(tmp_path) == ["cxx"]
