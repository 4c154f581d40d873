"""Compiling and caching: each thing once, safe among processes, errors in the student's own
lines."""

import errno
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import minidl.cuda as cuda
from minidl.cuda import dispatch, run
from minidl.cuda.host import compiler, cpu
from tests.conftest import whole_form

ROOT = Path(__file__).resolve().parents[3]
DOUBLE = """extern "C" __global__ void twice(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= 2;
}
"""


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty cache, with the runtime library of the shared one, which takes seconds to
    compile."""
    runtime_key = compiler.key_of("runtime", *compiler.find_compiler().runtime_flags)
    cpu.runtime()
    runtime_file = compiler.cached(runtime_key)
    monkeypatch.setenv("MINIDL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "kernels").mkdir(parents=True)
    for file in runtime_file, compiler._sum_of(runtime_file):
        os.link(file, tmp_path / "cache" / "kernels" / file.name)
    return tmp_path / "cache" / "kernels"


def write(folder, text=DOUBLE, name="twice.cu"):
    (folder / name).write_text(text)
    return folder / name


def run_twice(file, **options):
    x = np.arange(5, dtype=np.float32)
    cuda.kernel(file, "twice", **options)(1, 32, (x, 5))
    np.testing.assert_array_equal(x, 2 * np.arange(5))


def test_a_kernel_is_compiled_once(tmp_path, own_cache, monkeypatch):
    file = write(tmp_path)
    run_twice(file)
    assert len(list(own_cache.glob("*.so"))) == 2  # it and the runtime
    assert len(list(own_cache.iterdir())) == 4  # with their checksums, and no temporary file
    assert all(f.stat().st_mode & 0o444 == 0o444 for f in own_cache.iterdir()), "may be shared"
    run._library.cache_clear()
    monkeypatch.setattr(compiler, "run", None)  # a compilation would now fail
    run_twice(file)


@pytest.mark.skipif(platform.machine() not in compiler.X86, reason="MMX is x86's")
def test_no_kernel_leaves_the_x87_registers_in_use(own_cache, monkeypatch):
    """Without AVX g++ would sum up absmax in MMX registers: the next fmod of NumPy's is nan then,
    and str(np.float32(6)) 6e+00."""
    monkeypatch.setenv("MINIDL_CPU", "x86-64")
    run._library.cache_clear()
    x, top = np.arange(-20, 20, dtype=np.float32).reshape(2, 20), np.empty(2, np.float32)
    cuda.kernel("quantize.cu", "absmax", defines={"T": "float"})(1, 32, (top, x, 2, 20))
    seven = np.floor_divide(7, top), str(top[0])
    run._library.cache_clear()
    assert seven[0].tolist() == [0, 0] and seven[1] == "20.0" and top.tolist() == [20, 19]


@pytest.mark.parametrize("kind, guarded", [("gnu", True), ("clang", False)])
def test_clang_gets_no_guards_of_shared_memory(tmp_path, own_cache, monkeypatch, kind, guarded):
    """Clang ignores __thread in `static __thread union { ... };`: all blocks would share it."""
    class Compiled(Exception):
        pass

    def build(key, arguments, code, path):
        raise Compiled(code)

    monkeypatch.setattr(compiler, "find_compiler", lambda: compiler.Compiler(["g++"], kind))
    monkeypatch.setattr(compiler, "build", build)
    path = tmp_path / "shared.cu"
    path.write_text('extern "C" __global__ void k(float* x) { __shared__ float s[32]; '
                    "s[threadIdx.x] = 1; __syncthreads(); x[threadIdx.x] = s[threadIdx.x]; }")
    with pytest.raises(Compiled) as caught:
        cpu.load(path, {})
    assert ("static __thread union" in str(caught.value)) == guarded


def test_code_for_another_processor_is_another_library(tmp_path, own_cache, monkeypatch):
    file = write(tmp_path)
    run_twice(file)
    monkeypatch.setenv("MINIDL_CPU", "no-such-processor")
    run._library.cache_clear()
    with pytest.raises(cuda.KernelError, match="(?i)no.such.processor|unknown.*CPU|march"):
        run_twice(file)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names of PCs")
@pytest.mark.parametrize("name", ["x86-64", "x86-64-v3"])
def test_code_for_an_older_processor(tmp_path, own_cache, monkeypatch, name):
    monkeypatch.setenv("MINIDL_CPU", name)
    file = write(tmp_path, DOUBLE.replace("{", """{
#if defined(__AVX512F__) || defined(__AVX2__) != WANTED
#error the code is for another processor
#endif""", 1))
    run_twice(file, defines={"WANTED": int(name == "x86-64-v3")})


def test_an_edited_file_or_include_is_compiled_again(tmp_path, own_cache):
    (tmp_path / "factor.cuh").write_text("#define FACTOR 2\n")
    file = write(tmp_path, '#include "factor.cuh"\n' + DOUBLE.replace("*= 2", "*= FACTOR"))
    run_twice(file)
    (tmp_path / "factor.cuh").write_text("#define FACTOR 3\n")
    os.utime(tmp_path / "factor.cuh", ns=(1, 1))
    x = np.ones(3, np.float32)
    cuda.kernel(file, "twice")(1, 32, (x, 3))
    assert (x == 3).all()


def test_defines_make_different_libraries(tmp_path, own_cache):
    file = write(tmp_path, DOUBLE.replace("float*", "T*"))
    run_twice(file, defines={"T": "float"})
    x = np.ones(2)
    cuda.kernel(file, "twice", options=("-DT=double",))(1, 32, (x, 2))
    assert (x == 2).all()


@whole_form
@pytest.mark.slow
def test_processes_that_start_together_do_not_disturb_each_other(tmp_path):
    file = write(tmp_path)
    code = (
        "import numpy as np, minidl.cuda as c; x = np.ones(3, np.float32)\n"
        f"c.kernel({str(file)!r})(1, 32, (x, 3)); print(x.sum())"
    )
    env = {**os.environ, "MINIDL_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    ranks = [
        subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [rank.communicate()[0].strip() for rank in ranks] == ["6.0"] * 3
    files = sorted((tmp_path / "cache" / "kernels").iterdir())
    assert [file.name[32:] for file in files] == [".so", ".so.sha256"] * 2
    assert all(compiler.is_whole(file) for file in files[::2])


def test_a_cache_that_cannot_be_written_is_replaced_for_this_process(
    tmp_path, own_cache, monkeypatch
):
    blocked = tmp_path / "file"
    blocked.write_text("a file where a folder should be")
    monkeypatch.setenv("MINIDL_CACHE", str(blocked))
    made = []
    monkeypatch.setattr(compiler, "_made", made)
    assert compiler.cache_folder() is None
    with pytest.warns(RuntimeWarning, match="cannot be written .* each process compiles its own"):
        run_twice(write(tmp_path))
    made[0].cleanup()


def kept_library(tmp_path, own_cache):
    """A .cu file, and the library of its kernel in the cache."""
    before, file = set(own_cache.glob("*.so")), write(tmp_path)
    run_twice(file)
    run._library.cache_clear()
    return file, (set(own_cache.glob("*.so")) - before).pop()


def is_made_again(file, library, monkeypatch):
    """The kernel runs, and its library was compiled for that; what was there is not loaded."""
    n_compiled, build = [], compiler.build
    monkeypatch.setattr(compiler, "build", lambda *a, **o: n_compiled.append(1) or build(*a, **o))
    run_twice(file)
    run._library.cache_clear()
    assert compiler.is_whole(library)
    return len(n_compiled) == 1


DAMAGE = {
    "empty": lambda data: b"", "half": lambda data: data[:len(data) // 2],
    "without its last byte": lambda data: data[:-1], "longer": lambda data: data + b"\0",
    "zeros": lambda data: bytes(len(data)), "text": lambda data: b"no library",
    "one bit": lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:]}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_library_is_made_again(tmp_path, own_cache, monkeypatch, how):
    file, library = kept_library(tmp_path, own_cache)
    data = library.read_bytes()
    library.unlink()  # the old bytes are still mapped
    library.write_bytes(DAMAGE[how](data))
    library.chmod(0o755)
    assert is_made_again(file, library, monkeypatch)
    assert library.read_bytes() == data


@pytest.mark.parametrize("told", [None, "", "0" * 64, "\xff"])
def test_a_library_without_its_checksum_is_made_again(tmp_path, own_cache, monkeypatch, told):
    file, library = kept_library(tmp_path, own_cache)
    compiler._sum_of(library).unlink()
    if told is not None:
        compiler._sum_of(library).write_bytes(told.encode("latin-1"))
    assert is_made_again(file, library, monkeypatch)


def test_a_library_that_is_whole_is_not_made_again(tmp_path, own_cache, monkeypatch):
    file, library = kept_library(tmp_path, own_cache)
    assert not is_made_again(file, library, monkeypatch)


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="a system without owners of files")
def test_a_library_that_others_can_have_written_is_made_again(tmp_path, own_cache, monkeypatch):
    file, library = kept_library(tmp_path, own_cache)
    for mode in 0o775, 0o757:
        library.chmod(mode)
        assert is_made_again(file, library, monkeypatch), oct(mode)
    own_cache.chmod(0o777)
    assert not compiler.is_whole(library)
    own_cache.chmod(0o1777)  # sticky: nobody replaces another user's file
    assert compiler.is_whole(library)
    own_cache.chmod(0o755)


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="a system without owners of files")
def test_a_library_of_another_user_is_not_loaded(tmp_path, own_cache, monkeypatch):
    _, library = kept_library(tmp_path, own_cache)
    another = os.stat(library).st_uid + 1
    real = Path.stat

    def owned(file, folder):
        def stat(path, **options):
            found = list(real(path, **options))
            found[4] = file if path == library else folder if path == own_cache else found[4]
            return os.stat_result(found)
        return stat

    mine = os.getuid()
    for file, folder, named, good in (
            (mine, mine, True, True), (another, mine, True, False), (0, mine, True, True),
            (another, another, True, True),  # a teacher's folder, which the student names
            (another, another, False, False)):
        monkeypatch.setattr(Path, "stat", owned(file, folder))
        monkeypatch.setenv("MINIDL_CACHE", str(own_cache.parent) if named else "")
        assert compiler.is_whole(library) is good, (file, folder, named)


def test_a_cache_without_space_is_replaced_for_this_process(tmp_path, own_cache, monkeypatch):
    made, replace = [], os.replace
    monkeypatch.setattr(compiler, "_made", made)

    def full(here, there):
        if Path(there).parent == own_cache:
            raise OSError(28, "No space left on device")
        replace(here, there)

    monkeypatch.setattr(compiler.os, "replace", full)
    with pytest.warns(RuntimeWarning, match="has no space left .* each process compiles its own"):
        run_twice(write(tmp_path))
    assert len(list(Path(made[0].name).glob("*.so"))) == 1
    assert not list(own_cache.glob("*.tmp"))
    made[0].cleanup()


def test_a_disk_that_fills_between_two_kernels(tmp_path, own_cache, monkeypatch):
    """Red before: where the temporary folder was full, too, a program ended at its next kernel."""
    made, full, real = [], [], os.replace
    monkeypatch.setattr(compiler, "_made", made)
    monkeypatch.setattr(compiler, "MEMORY", str(tmp_path))

    def replace(here, there):
        if Path(there).parent in full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(here, there)

    monkeypatch.setattr(compiler.os, "replace", replace)

    def next_kernel(n):
        text = DOUBLE.replace("twice", f"twice{n}").replace("*= 2", f"*= {n}")
        x = np.ones(3, np.float32)
        cuda.kernel(write(tmp_path, text, f"{n}.cu"), f"twice{n}")(1, 32, (x, 3))
        assert (x == n).all()
        generated = dispatch.generated(text)  # the source of a fused op is kept there, too
        assert generated.read_text() == text
        return generated.parent

    assert next_kernel(2) == own_cache
    full.append(own_cache)
    with pytest.warns(RuntimeWarning, match="has no space left .* each process compiles") as said:
        assert next_kernel(3) == Path(made[0].name)
        full.append(Path(made[0].name))
        in_memory = next_kernel(4)
        assert in_memory == Path(made[1].name) and in_memory.parent == tmp_path
    assert len(said) == 1
    full.append(in_memory)
    with pytest.raises(compiler.NoSpace, match="no space left for compiled kernels"):
        next_kernel(5)
    full.clear()
    next_kernel(6)  # there is room again
    for folder in made:
        folder.cleanup()
    assert not in_memory.exists() and not list(own_cache.glob("*.tmp"))
    dispatch.generated.cache_clear()


def test_a_compiler_without_room_for_its_own_files_gets_some(tmp_path, own_cache, monkeypatch):
    """The disk of TMPDIR is full: the compiler says so until its files go elsewhere."""
    made, fake = [], tmp_path / "compiler"
    fake.write_text(f"#!/bin/sh\ncase $TMPDIR in {tmp_path}/*) exec g++ \"$@\";; esac\n"
                    "for a; do [ $a = -E ] && exec g++ \"$@\"; done\n"
                    "echo cc1plus: No space left on device >&2; exit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("MINIDL_CXX", str(fake))
    monkeypatch.setattr(compiler, "_made", made)
    monkeypatch.setattr(compiler, "MEMORY", str(tmp_path))
    with pytest.warns(RuntimeWarning, match="has no space left"):
        run_twice(write(tmp_path))
    assert len(made) == 2 and len(list(Path(made[1].name).glob("*.so"))) >= 1
    for folder in made:
        folder.cleanup()


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not tell")
def test_a_folder_that_no_library_can_be_loaded_from_is_passed_over(tmp_path, monkeypatch):
    made, real = [], os.statvfs
    monkeypatch.setattr(compiler, "_made", made)
    monkeypatch.setattr(compiler, "MEMORY", str(tmp_path))

    def no_exec(folder):
        found = list(real(folder))
        found[8] |= os.ST_NOEXEC * (str(folder) == tempfile.gettempdir())
        return os.statvfs_result(found)

    monkeypatch.setattr(compiler.os, "statvfs", no_exec)
    with pytest.warns(RuntimeWarning, match="has no space left"):
        assert compiler.own_folder("has no space left").parent == tmp_path
    made[0].cleanup()


def test_numpy_computes_where_no_kernel_can_be_kept(tmp_path):
    """Neither the cache nor a temporary folder nor memory can be written: one warning."""
    (tmp_path / "file").write_text("a file where folders should be")
    code = ("import minidl, numpy as np; from minidl.nn import functional as F\n"
            "x = minidl.tensor(np.ones((4, 4), np.float32))\n"
            "print(F.softmax(x, -1).sum().item(), F.gelu(x).sum().item() > 0)")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "always",
           "MINIDL_CACHE": str(tmp_path / "file")}
    nowhere = str(tmp_path / "file" / "x")
    code = (f"import tempfile; tempfile.tempdir = {nowhere!r}\n"
            f"from minidl.cuda.host import compiler; compiler.MEMORY = {nowhere!r}\n" + code)
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert ran.stdout.split() == ["4.0", "True"], ran.stderr
    assert ran.stderr.count("the plain NumPy ops are used") == 1


def test_a_text_in_the_cache_has_its_checksum(tmp_path):
    file = tmp_path / "log"
    assert compiler.kept(file) is None
    compiler.keep(file, "two\nlines")
    assert compiler.kept(file) == "two\nlines"
    good = file.read_bytes()
    for data in (b"", good[:-1], good + b"x", good.replace(b"two", b"twa"), b"\xff" + good):
        file.write_bytes(data)
        assert compiler.kept(file) is None
    compiler.keep(tmp_path / "none" / "log", "text")  # a folder that is not there: not kept


def test_a_generated_source_that_was_damaged_is_written_again(tmp_path, own_cache):
    path = dispatch.generated(DOUBLE)
    for text in ("", DOUBLE[:-9], DOUBLE.replace("2", "3")):
        path.write_text(text)
        dispatch.generated.cache_clear()
        assert dispatch.generated(DOUBLE) == path and path.read_text() == DOUBLE
    dispatch.generated.cache_clear()


def test_a_copy_of_the_checkout_finds_its_libraries(tmp_path, monkeypatch):
    if str(cuda.KERNELS.parent) in str(compiler.find_compiler()):
        pytest.skip("the compiler lies in the checkout, and its path is a part of the key")
    here = compiler.key_of(f'#line 1 "{cuda.KERNELS}/add3.cu"')
    monkeypatch.setattr(compiler, "KERNELS", tmp_path / "kernels")
    assert compiler.key_of(f'#line 1 "{tmp_path}/kernels/add3.cu"') == here
    assert compiler.key_of(f'#line 1 "{tmp_path}/kernels/sgd.cu"') != here


def test_a_kernel_that_must_be_fibres_is_not_compiled_again_to_be_some(tmp_path, own_cache):
    file = write(tmp_path, DOUBLE.replace("if (i < n)", "__syncthreads(); if (i < n)"))
    for ways in {}, {"form": "fibre"}, {"order": "descending"}, {"order": 5}:
        run_twice(file, **ways)
    assert len(list(own_cache.glob("*.so"))) == 2  # it and the runtime
    flat = write(tmp_path)
    run_twice(flat, form="fibre")
    assert cuda.kernel(flat, form="fibre").on_cpu.form == "fibre"


def test_a_full_disk_is_said_to_be_one(tmp_path, own_cache, monkeypatch):
    fake = tmp_path / "compiler"
    fake.write_text("#!/bin/sh\necho ld: final link failed: No space left on device >&2; exit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("MINIDL_CXX", str(fake))
    monkeypatch.setattr(cpu, "runtime", lambda: None)
    with pytest.raises(cuda.KernelError, match="(?s)no space left.*Name other folders in TMPDIR"):
        run_twice(write(tmp_path))


def test_an_error_names_the_students_file_and_line(tmp_path, own_cache):
    file = write(tmp_path, DOUBLE.replace("x[i] *= 2", "x[i] *= two"))
    with pytest.raises(cuda.KernelError) as caught:
        run_twice(file)
    assert f"{file}:3:" in str(caught.value) and "two" in str(caught.value)


def test_an_error_in_an_include_names_the_include(tmp_path, own_cache):
    (tmp_path / "helper.cuh").write_text("\n__device__ float help(float x) { return y; }\n")
    file = write(tmp_path, '#include "helper.cuh"\n' + DOUBLE)
    run_twice(file)  # a kernel that does not call it is none the worse
    write(tmp_path, '#include "helper.cuh"\n' + DOUBLE.replace("x[i] *= 2", "x[i] = help(x[i])"))
    with pytest.raises(cuda.KernelError, match=r"helper\.cuh:2:"):
        run_twice(file)


def test_an_unknown_header_is_named(tmp_path, own_cache):
    with pytest.raises(cuda.KernelError, match="<vector> is not supported"):
        run_twice(write(tmp_path, "#include <vector>\n" + DOUBLE))


def test_one_unsupported_kernel_does_not_stop_its_neighbours(tmp_path, own_cache):
    file = write(
        tmp_path,
        DOUBLE + 'extern "C" __global__ void ptx(float* x) { asm volatile("bar.sync 0;"); }\n',
    )
    run_twice(file)
    with pytest.raises(cuda.KernelError, match=r"twice.cu:5: ptx uses inline PTX"):
        cuda.kernel(file, "ptx")(1, 32, (np.zeros(1, np.float32),))


TWO = DOUBLE + DOUBLE.replace("twice", "again")


def test_only_the_kernel_asked_for_is_compiled(tmp_path, own_cache):
    file = write(tmp_path, TWO)
    assert list(cpu.load(file, {}, "again").kernels) == ["again"]
    assert list(cpu.load(file, {}).kernels) == ["twice", "again"]
    run_twice(file)
    assert len(list(own_cache.glob("*.so"))) == 4  # again; both; twice; the runtime


def test_a_kernel_that_an_if_leaves_out_is_said_to_be(tmp_path, own_cache):
    file = write(tmp_path, TWO.replace("}\nextern", "}\n#ifdef NEVER\nextern") + "#endif\n")
    with pytest.raises(cuda.KernelError, match="'again' is left out by an #if"):
        cuda.kernel(file, "again")(1, 32, (np.zeros(1, np.float32), 1))
    with pytest.raises(cuda.KernelError, match="no kernel 'thrice'.* it has: twice, again"):
        cuda.kernel(file, "thrice")(1, 32, (np.zeros(1, np.float32), 1))


def test_a_library_of_an_older_generator_is_not_used(tmp_path, own_cache, monkeypatch):
    file = write(tmp_path)
    run_twice(file)
    run._library.cache_clear()
    monkeypatch.setattr(cpu, "generator", lambda: ["the text of a newer flat.py"])
    run_twice(file)
    assert len(list(own_cache.glob("*.so"))) == 3


def test_without_a_compiler_one_sentence_tells_the_remedies(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("MINIDL_CXX", raising=False)
    with pytest.raises(
        cuda.KernelError, match=r"apt install g\+\+.*xcode-select.*minidl\[zig\].*MINIDL_CXX"
    ):
        compiler.find_compiler()


def test_a_named_compiler_that_does_not_exist_is_an_error(monkeypatch):
    monkeypatch.setenv("MINIDL_CXX", "no-such-compiler -O3")
    with pytest.raises(cuda.KernelError, match="got 'no-such-compiler'"):
        compiler.find_compiler()


def test_importing_minidl_cuda_compiles_nothing():
    code = "import minidl.cuda; minidl.cuda.kernel('add3.cu', 'add3')"
    env = {**os.environ, "PATH": "/nonexistent", "PYTHONPATH": str(ROOT)}
    assert (
        subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True
        ).returncode
        == 0
    )
