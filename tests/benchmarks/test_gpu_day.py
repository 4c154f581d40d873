"""benchmarks/gpu_day.py, rehearsed without a GPU: it goes on after a kill, ends what takes too
long, keeps the ten minutes, and every kernel has a row. Its parts run on the stand-in for CuPy."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.cluster import ROOT
from tests.conftest import whole_form

FOLDER = ROOT / "benchmarks"
if str(FOLDER) not in sys.path:
    sys.path.insert(0, str(FOLDER))  # where a benchmark finds its neighbours

import gpu_day  # noqa: E402
import gpu_steps  # noqa: E402

from minidl.cuda import KERNELS  # noqa: E402

# Parts that take no time. Each writes a line when it begins, with the number of its process.
PARTS = '''
import os
import time
from pathlib import Path

HERE = Path(__file__).parent


def note(line):
    with open(HERE / "log", "a") as log:
        log.write(f"{line} {os.getpid()}\\n")


def part(name):
    note(name)
    if name == "kernels-1" and (HERE / "hang").exists():
        time.sleep(60)
    if name == "kernels-1" and (HERE / "raise").exists():
        raise ValueError("a kernel that is not right")
    return [{"what": name, "value": 1}]


def parts(step):
    return [(f"{step}-{i}", lambda i=i: part(f"{step}-{i}")) for i in range(3)]


PARTS = {step: lambda size, step=step: parts(step) for step in STEPS}
'''


@pytest.fixture
def day(tmp_path, monkeypatch):
    """What a run of these parts has: folder, options, a process of it, and its log."""
    (tmp_path / "quick_parts.py").write_text(f"STEPS = {list(gpu_day.STEPS)}\n{PARTS}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    out = tmp_path / "out"
    words = "--out", str(out), "--parts", "quick_parts"

    def start(*more):
        return subprocess.Popen([sys.executable, FOLDER / "gpu_day.py", *words, *more], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def log():
        path = tmp_path / "log"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def whole():
        return {step: [row["what"] for row in result["rows"]]
                for step, result in gpu_day.read(out / "gpu_day.json")["steps"].items()}

    return SimpleNamespace(out=out, here=tmp_path, args=gpu_day.options(words), start=start,
                           log=log, whole=whole)


WHOLE = {step: [f"{step}-{i}" for i in range(3)] for step in gpu_day.STEPS}


def ended(process):
    """(what it printed, its exit status), when it has ended."""
    text, _ = process.communicate()
    return text, process.returncode


def until(true, seconds=20):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.005)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")  # a process that nobody has waited for has ended, too
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_killed_after_each_step_it_ends_with_the_same_steps_done_once(day):
    def begun(step):
        return [name for name, _ in day.log() if name.rsplit("-", 1)[0] == step]

    when_done = {}
    for step in gpu_day.STEPS:
        process = day.start()
        until(lambda step=step: (day.out / "steps" / f"{step}.json").exists())
        when_done[step] = begun(step)
        process.kill()
        ended(process)
    text, status = ended(day.start())
    assert "machine: done before" in text and status == 0
    assert day.whole() == WHOLE
    for step, names in when_done.items():
        # a part that was cut off has begun twice; what is done has not begun again
        assert begun(step) == names and set(names) == set(WHOLE[step])


def test_killed_during_a_part_its_process_ends_and_the_part_alone_is_done_again(day):
    (day.here / "hang").touch()
    process = day.start()
    until(lambda: any(name == "kernels-1" for name, _ in day.log()))
    (pid,) = [int(pid) for name, pid in day.log() if name == "kernels-1"]
    assert is_alive(pid)
    process.kill()
    ended(process)
    until(lambda: not is_alive(pid))
    (day.here / "hang").unlink()
    assert ended(day.start())[1] == 0
    assert day.whole() == WHOLE
    names = [name for name, _ in day.log()]
    again = {name for name in names if names.count(name) > 1}
    assert again == {"kernels-1"}


def test_a_part_beyond_its_limit_is_ended_and_said_and_the_next_one_runs(day):
    (day.here / "hang").touch()
    result = gpu_day.run_step(day.args, "kernels", limit_s=30, part_s=0.5)
    first, second, third = result["rows"]
    assert result["how"] == "done" and (first["value"], third["value"]) == (1, 1)
    assert (second["what"], second["result"]) == ("kernels-1", "ended after 0.5 s")
    assert gpu_day.faults(result["rows"]) == [second]
    (pid,) = [int(pid) for name, pid in day.log() if name == "kernels-1"]
    assert not is_alive(pid)


def test_a_step_beyond_its_limit_is_ended_and_said(day):
    (day.here / "hang").touch()
    result = gpu_day.run_step(day.args, "kernels", limit_s=1, part_s=30)
    assert result["how"].startswith("ended after its 1 s") and result["seconds"] < 10
    assert [row.get("result") for row in result["rows"]] == [
        None, "ended: the time of the step was over"]


def test_a_part_that_raises_is_a_row_with_its_last_lines_and_the_next_one_runs(day):
    (day.here / "raise").touch()
    text, status = ended(day.start())
    assert status == 1 and "kernels: done" in text
    assert "wrong or failed: kernels-1" in text
    assert day.whole() == WHOLE
    page = (day.out / "gpu_day.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("| kernels-1 |")]
    assert "failed (1)" in line and "ValueError: a kernel that is not right" in line


def test_a_step_that_cannot_begin_says_why(day):
    day.args.parts = "no_such_module"
    result = gpu_day.run_step(day.args, "machine", limit_s=20, part_s=20)
    assert result["rows"] == [] and "No module named 'no_such_module'" in result["how"]


def test_again_forgets_one_step_or_all_and_sizes_do_not_mix(day):
    assert ended(day.start())[1] == 0
    assert ended(day.start("--step", "memory", "--again"))[1] == 0
    names = [name for name, _ in day.log()]
    assert [names.count(f"{step}-0") for step in ("machine", "memory")] == [1, 2]
    text, status = ended(day.start("--size", "small"))
    assert "has results of --size usual" in text and status == 1
    assert ended(day.start("--size", "small", "--again"))[1] == 0
    assert [name for name, _ in day.log()].count("machine-0") == 2


class Clock:
    """Time goes by when somebody sleeps."""

    now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += 20 * seconds


@pytest.mark.parametrize("needs_s", [3, 70, 10_000])
def test_all_steps_take_ten_minutes_at_most(day, needs_s):
    clock, running = Clock(), []

    class Process:
        returncode = 0

        def __init__(self, args, step):
            self.end_s = clock() + needs_s
            self.step = step

        def poll(self):
            return 0 if clock() >= self.end_s else None

    def start(args, step, left_s):
        assert not running and 0 < left_s <= gpu_day.STEPS[step][0], "one at a time"
        running.append(step)
        return Process(args, step)

    steps = {step: (limit_s, limit_s) for step, (limit_s, _) in gpu_day.STEPS.items()}
    assert sum(limit_s for limit_s, _ in steps.values()) > gpu_day.TOTAL_S
    results = gpu_day.run(day.args, steps, say=lambda line: None, clock=clock, start=start,
                          end=lambda process: running.clear(), sleep=clock.sleep)
    assert set(results) == set(gpu_day.STEPS) and clock() <= gpu_day.TOTAL_S + 20 * gpu_day.POLL_S
    late = [step for step, result in results.items() if result["how"].startswith("not begun")]
    if needs_s == 3:
        assert {result["how"] for result in results.values()} == {"done"}
    if needs_s == 10_000:  # 490 s for the others: the tests have the rest
        assert results["tests"]["how"].startswith("ended after its 1")
    for step in late:  # the next command begins it
        assert not (day.out / "steps" / f"{step}.json").exists()


def test_a_step_that_has_no_time_left_is_begun_by_the_next_command(day):
    text, status = ended(day.start("--seconds", "1"))
    assert status == 1 and "machine: not begun: the 1 s in all are over" in text
    assert not (day.out / "steps").exists() and day.log() == []
    assert ended(day.start())[1] == 0 and day.whole() == WHOLE


def test_what_a_step_keeps_is_in_the_folder(tmp_path):
    environ = gpu_day.environment(tmp_path)
    for name in ("MINIDL_CACHE", "MINIDL_TESTS_CACHE", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH",
                 "XDG_CACHE_HOME", "TMPDIR"):
        assert environ[name].startswith(f"{tmp_path}/")
    assert environ["PYTHONDONTWRITEBYTECODE"] == "1"


def test_a_table_has_the_columns_of_all_rows():
    rows = [{"what": "a|b", "us": 12345.6},
            {"what": "c", "result": "failed", "last lines": ["x", "y"]}]
    assert gpu_day.table(rows) == ["| what | us | result | last lines |", "|---|---|---|---|",
                                   "| a\\|b | 12,346 |  |  |", "| c |  | failed | x / y |"]


# -- the parts, on the stand-in


def kernels_of(file):
    return re.findall(r"__global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(", file.read_text())


def test_each_kernel_file_has_a_part():
    parts = {name for name, _ in gpu_steps.kernels("small")}
    for file in KERNELS.glob("*.cu"):
        assert any(file.stem.startswith(name) for name in parts), f"{file.name}: no bench for it"


def test_a_predicted_share_is_that_of_the_kernels_header():
    headers = {name: re.split(r"\n(?!//)", file.read_text())[0]
               for file in KERNELS.glob("*.cu") for name in kernels_of(file)}
    assert set(gpu_steps.EXPECTED) <= set(headers)
    first = r"Expected shares? of"
    for kernel, share in gpu_steps.EXPECTED.items():
        words = re.split(first, headers[kernel].replace("\n//", " "), maxsplit=1)[1]
        for word in re.findall(r"\d+|quarter|half|none", share):
            assert re.search(rf"\b{word}\b", words), f"{kernel}: {share} is not in its header"
    for file in KERNELS.glob("*.cu"):
        assert set(kernels_of(file)) & set(gpu_steps.EXPECTED), (
            f"{file.name}: write the shares of its header into EXPECTED of benchmarks/gpu_steps.py")


def test_a_rung_has_a_row_and_so_has_each_kernel_that_it_launches(strict_cupy, needs_compiler):
    rows = gpu_steps.kernel_rows("adamw", (3, 40), 1)
    assert rows[0]["what"].startswith("adamw_naive")
    assert {row["what"].split()[0] for row in rows} == set(kernels_of(KERNELS / "adamw.cu"))
    assert {row["right"] for row in rows} == {"right"}
    # Times mean nothing here. So a rung may have the name of either kernel that it launches.
    assert {(row["share"], row["of"]) for row in rows[:3]} == {("", "a copy")}
    (many,) = [row for row in rows if row["what"].startswith("adamw_many")]
    assert many["predicted"] == "90%" and many["GB/s"] > 0


def test_shares_are_of_a_copy_or_of_cublas_in_the_kernels_dtype(monkeypatch):
    monkeypatch.setattr(gpu_steps, "rates", lambda: {"float32": 1e12, "float16": 4e12})
    rung = SimpleNamespace(name="softmax_v4", flop=0, n_bytes=1e6, time_s=2e-6, copy_s=1e-6)
    assert gpu_steps.speed(rung) == {"GB/s": 500.0, "of": "a copy", "share": "50%"}
    rung = SimpleNamespace(name="matmul_v4", flop=1e9, time_s=1e-3)
    assert gpu_steps.speed(rung) == {"GFLOP/s": 1000.0, "of": "cuBLAS float16", "share": "25%"}
    rung = SimpleNamespace(name="matmul_v3", flop=1e9, time_s=2e-3)
    assert gpu_steps.speed(rung)["share"] == "50%"


def test_a_step_waits_for_nothing_so_that_a_graph_can_have_it(strict_cupy, needs_compiler):
    for level in ("O0", "O2"):
        run = gpu_steps.minidl_step("small", level)[2]
        for _ in range(3):  # until gradients come back to the addresses that they had
            run()
        with strict_cupy.stand_in.counting() as count:
            run()
        assert not count.waits and not count.uploads and count.launches


def test_pytorch_has_the_same_losses(strict_cupy, needs_compiler):
    pytest.importorskip("torch", reason="compared with PyTorch")
    model, _, ours = gpu_steps.minidl_step("small")
    theirs = gpu_steps.torch_step("small", model, half=False, device="cpu")
    for _ in range(3):  # float32: three steps of the same formulas
        assert float(theirs()) == pytest.approx(float(ours()), rel=1e-4)


def test_rows_of_a_step_have_the_time_of_pytorch_beside_them(strict_cupy, needs_compiler,
                                                             monkeypatch):
    pytest.importorskip("torch", reason="compared with PyTorch")
    import common

    from minidl.cuda import cuda_graph

    monkeypatch.setattr(gpu_steps, "on_stand_in", lambda: False)
    monkeypatch.setattr(common, "torch_runs_on", lambda device: True)
    on_gpu = gpu_steps.torch_step
    monkeypatch.setattr(gpu_steps, "torch_step", lambda *args: on_gpu(*args, device="cpu"))
    ours, theirs = gpu_steps.eager("small")
    assert (ours["what"], theirs["what"]) == ("minidl, O0", "PyTorch, O0")
    assert ours["losses"] == theirs["losses"] and theirs["of PyTorch's time"] == 1
    assert ours["of PyTorch's time"] == pytest.approx(ours["ms"] / theirs["ms"])
    monkeypatch.setattr(cuda_graph, "graphed", lambda step: step)  # nothing is captured here
    full, half = gpu_steps.graphs("small")
    assert full["losses"] == ours["losses"] and "one CUDA graph" in half["what"]


def test_peaks_are_rows_of_a_copy_and_of_cublas(monkeypatch):
    found = {"bandwidth": 3e12, "float32": 50e12, "float16": 700e12}
    monkeypatch.setattr(gpu_steps, "rates", lambda: found)
    assert [row["value"] for row in gpu_steps.peaks()] == [3000.0, 50000.0, 700000.0]


def test_the_sanitizer_watches_a_bench_on_the_gpu(tmp_path, needs_compiler, monkeypatch):
    """A tool of that name which only runs the command behind its options."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text('#!/bin/sh\ntest "$1" = --tool || exit 9\nshift 2\n"$@"\n'
                    'echo "========= ERROR SUMMARY: 0 errors"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "strict_cupy"))
    parts = dict(gpu_steps.sanitizer("usual"))
    assert len(parts) == len(gpu_steps.WATCHED) * len(gpu_steps.TOOLS)
    assert parts["memcheck adamw"]() == [{"what": "memcheck adamw",
                                          "result": "ERROR SUMMARY: 0 errors"}]


def test_the_ledger_stands_beside_the_pool(strict_cupy, needs_compiler, monkeypatch):
    from minidl import memory

    used = iter((1000, 1000 + 512))  # before the model is made, and after some steps
    pool = SimpleNamespace(free_all_blocks=lambda: None, used_bytes=lambda: next(used),
                           total_bytes=lambda: 1 << 20)
    monkeypatch.setattr(gpu_steps, "on_stand_in", lambda: False)
    monkeypatch.setattr(strict_cupy, "get_default_memory_pool", lambda: pool)
    between, peak = gpu_steps.ledger_and_pool("small", "O0")
    model, optimizer, run = gpu_steps.minidl_step("small")
    run()
    assert between["ledger, bytes"] == sum(memory.totals(model, optimizer).values())
    assert between["pool, bytes"] == 512 and peak["pool, bytes"] == 1 << 20
    assert peak["ledger, bytes"] > between["ledger, bytes"]


@whole_form
def test_tests_that_take_too_long_are_interrupted_and_those_before_are_counted(tmp_path):
    (tmp_path / "test_x.py").write_text(
        "import time\n\n\ndef test_a():\n    pass\n\n\ndef test_b():\n    time.sleep(60)\n")
    report = tmp_path / "report.xml"
    begin = time.monotonic()
    gpu_steps.ran(sys.executable, "-m", "pytest", "-c", os.devnull, "-p", "no:cacheprovider",
                  f"--junitxml={report}", tmp_path / "test_x.py", check=False, limit_s=4)
    assert time.monotonic() - begin < 4 + gpu_steps.GRACE_S
    (row,) = gpu_steps.test_rows([str(tmp_path / "test_x.py")],
                                 ElementTree.parse(report).getroot())
    assert (row["passed"], row["failed"]) == (1, 0)


def test_failed_tests_are_named():
    report = ElementTree.fromstring(
        '<testsuites><testsuite tests="3" failures="1" errors="0" skipped="1" time="2.0">'
        '<testcase classname="tests.cuda.test_x" name="test_a"/>'
        '<testcase classname="tests.cuda.test_x" name="test_b[2]">'
        '<failure message="assert 1 == 2&#10;more"/></testcase>'
        '<testcase classname="tests.cuda.test_x" name="test_c"><skipped/></testcase>'
        '</testsuite></testsuites>')
    rows = gpu_steps.test_rows(["tests/cuda/test_x.py"], report)
    assert rows == [{"what": "tests/cuda/test_x.py", "passed": 1, "failed": 1, "skipped": 1,
                     "seconds": 2.0},
                    {"what": "tests.cuda.test_x::test_b[2]", "result": "failed: assert 1 == 2"}]
    assert gpu_day.faults(rows) == rows[1:]
    with pytest.raises(RuntimeError, match="no test for a GPU"):
        gpu_steps.test_rows(["tests/cuda/test_x.py"], ElementTree.fromstring("<testsuites/>"))


@pytest.mark.parametrize("text, result", [
    ("Wrong: 0.\n========= ERROR SUMMARY: 0 errors", "ERROR SUMMARY: 0 errors"),
    ("Wrong: 1.\n========= ERROR SUMMARY: 0 errors", "failed: ERROR SUMMARY: 0 errors; a result"),
    ("Error: no device", "failed: no summary; a result"),
])
def test_a_sanitizer_without_a_sound_result_has_failed(text, result):
    assert gpu_steps.verdict_of_sanitizer(text).startswith(result)


@whole_form
@pytest.mark.timeout(900)
def test_the_whole_day_on_the_stand_in(tmp_path, needs_compiler):
    (tmp_path / "home").mkdir()
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "strict_cupy"),
               "HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "nowhere")}
    command = [sys.executable, FOLDER / "gpu_day.py", "--out", tmp_path / "out", "--size", "small"]
    first = subprocess.Popen(command, env=environ)
    until(lambda: len(list((tmp_path / "out/parts/kernels").glob("*.json"))) > 5, 120)
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = gpu_day.read(tmp_path / "out/gpu_day.json")["steps"]
    assert list(steps) == list(gpu_day.STEPS)
    assert {step: result["how"] for step, result in steps.items()} == dict.fromkeys(steps, "done")
    rows = steps["kernels"]["rows"]
    assert {row["what"].split()[0] for row in rows} == {
        name for file in KERNELS.glob("*.cu") for name in kernels_of(file)}
    assert {row["right"] for row in rows} == {"right"}
    one, two = steps["parallel"]["rows"]
    np.testing.assert_allclose([float(x) for x in one["losses"]],
                               [float(x) for x in two["losses"]], rtol=1e-3)  # four digits
    assert "staged through pinned memory" in two["way"] and two["bytes sent a step"] > 0
    for step in ("step", "memory", "sanitizer"):
        assert all("what" in row for row in steps[step]["rows"])
    assert "no CUDA graphs" in json.dumps(steps["step"])
    assert "no figure" in json.dumps(steps["memory"])
    assert not list((tmp_path / "home").rglob("*")) and not (tmp_path / "nowhere").exists()
