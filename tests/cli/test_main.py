"""The command line: starting ranks so that none outlives a failure, and the doctor."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minidl.cli import doctor, launcher, machine
from minidl.cli import main as cli
from minidl.cli import rank
from minidl.course import tutorial
from minidl.course.exercise import ROOT

needs_mpi = pytest.mark.skipif(
    machine.find_mpiexec() is None or not doctor.installed("mpi4py"),
    reason="needs mpi4py and mpiexec",
)


# -- arguments


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    out = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(word in out for word in ("run", "doctor", "exercise", "check", "solution"))


HANDLERS = """
import signal, sys
seen = []

class Finder:  # looks at the handler whenever a module is searched
    def find_spec(self, name, path=None, target=None):
        if name in ("minidl.cli.main", "minidl.cli.doctor"):
            seen.append(signal.getsignal(signal.SIGINT) is signal.SIG_DFL)

sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["doctor"]
from minidl.__main__ import main
main()
print("HANDLERS", seen, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


def test_ctrl_c_cannot_be_lost_while_the_modules_of_a_command_are_imported():
    """Red before: Python ignored a KeyboardInterrupt in a callback of its import system, and
    `minidl run` ran on."""
    run = subprocess.run([sys.executable, "-c", HANDLERS], cwd=ROOT, text=True, check=False,
                         capture_output=True, timeout=60)
    assert "HANDLERS [True, True] True" in run.stdout, run.stdout + run.stderr


@pytest.mark.parametrize("argv", [["run"], ["kernel", "run"], []])
def test_help_may_stand_before_the_command(argv, capsys):
    with pytest.raises(SystemExit):
        cli.main([*argv, "--help"])
    wanted = capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        cli.main(["help", *argv])
    assert ended.value.code == 0 and capsys.readouterr().out == wanted


def test_a_tutorial_knows_the_options_of_run():
    top = cli.parser()
    commands = next(action.choices for action in top._actions if action.choices)
    options = {name for action in commands["run"]._actions for name in action.option_strings}
    assert set(tutorial.OF_RUN) <= options


def test_without_a_command_the_help_is_printed_as_an_error(capsys):
    assert cli.main([]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "start a script on several MPI ranks" in err


def test_native_windows_is_told_to_use_wsl_at_once(monkeypatch, capsys):
    monkeypatch.setattr(cli.sys, "platform", "win32")
    assert cli.main(["doctor"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "wsl --install" in err and (ROOT / "docs" / "install.md").exists()


@pytest.mark.parametrize(
    "argv, words",
    [
        (["frob"], "invalid choice: 'frob'"),
        (["run", "script.py"], "required: -n/--ranks"),
        (["run", "-n", "2"], "required: script\n"),
        (["run", "-n", "2", "--thread", "1", "script.py"], "unrecognized arguments: --thread"),
        (["run", "-n", "0", "script.py"], "at least 1, got '0'"),
        (["run", "-n", "four", "script.py"], "whole number"),
        (["exercise", "ring"], "such as 07 or 07a, got 'ring'"),
        (["check", "06ab"], "such as 07 or 07a, got '06ab'"),
        (["doctor", "--link"], "minidl doctor: error: unrecognized arguments: --link; see minidl"),
        (["doctor", "--links", "0"], "at least 1, got '0'"),
        (["kernel", "chek", "my.cu"], "invalid choice: 'chek' (choose from"),
        (["kernel", "check", "my.cu", "-D", "T float"], "such as T=double, got 'T float'"),
        (["kernel", "check", "my.cu", "--defines", "T"], "minidl kernel check --help"),
    ],
)
def test_wrong_arguments_end_with_2_and_say_what_is_wanted(argv, words, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert ended.value.code == 2 and words in capsys.readouterr().err


def test_what_comes_after_the_script_is_the_scripts(monkeypatch):
    monkeypatch.setattr(launcher, "run", lambda *args: args)
    args = cli.main(["run", "-n", "2", "--threads", "3", "script.py", "-n", "7", "--net", "1"])
    assert args == ("script.py", ["-n", "7", "--net", "1"], 2, 3, None, None, True, 300.0, 60.0,
                    None, None, 0, None, 0.0, False, 0, None)


@pytest.mark.parametrize("text, number", [("6", "06"), ("06", "06"), ("6a", "06a"), ("12b", "12b")])
def test_a_leading_zero_may_be_left_out(text, number):
    assert cli._number(text) == number


# -- finding mpiexec, and the environment


def _program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def test_mpiexec_beside_this_python_goes_before_the_path(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert machine.find_mpiexec() is None
    on_path = _program(tmp_path / "bin" / "mpirun", "")
    assert machine.find_mpiexec() == on_path
    beside = _program(tmp_path / "env" / "mpiexec", "")
    assert machine.find_mpiexec() == beside


def test_without_mpiexec_the_message_says_what_to_install(tmp_path, monkeypatch, capsys):
    pytest.importorskip("mpi4py")
    monkeypatch.setattr(launcher, "find_mpiexec", lambda: None)
    assert cli.main(["run", "-n", "4", __file__]) == 2
    err = capsys.readouterr().err
    assert "pip install" in err and "--sim 4" in err


def test_a_script_that_is_not_there(capsys):
    assert cli.main(["run", "-n", "4", "no_such.py"]) == 2
    assert "no file no_such.py" in capsys.readouterr().err


@pytest.mark.parametrize("more", [["--sim", "4"], ["--sim=4"]])
def test_simulated_ranks_are_not_started_n_times(more, capsys):
    assert cli.main(["run", "-n", "4", __file__, *more]) == 2
    err = capsys.readouterr().err
    assert "starts 4 processes" in err and f"python {__file__} --sim 4" in err


def test_a_number_is_taken_for_a_tutorial(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert cli.main(["run", "-n", "4", "07"]) == 2
    assert "Did you mean tutorials/07_ring.py?" in capsys.readouterr().err


def test_the_package_itself_is_the_command():
    run = subprocess.run([sys.executable, "-m", "minidl", "--version"], cwd=ROOT, text=True,
                         capture_output=True)
    assert run.returncode == 0 and run.stdout.startswith("minidl ")


def test_a_launcher_that_is_not_there(capsys):
    pytest.importorskip("mpi4py")
    assert cli.main(["run", "-n", "4", "--mpiexec", "no_such_launcher --fast", __file__]) == 2
    assert "cannot start no_such_launcher" in capsys.readouterr().err


@pytest.mark.parametrize(
    "n, cores, share", [(1, 8, "8"), (2, 8, "4"), (3, 8, "2"), (8, 8, "1"), (16, 8, "1")]
)
def test_ranks_share_the_cores(n, cores, share, monkeypatch):
    for name in machine.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(machine, "n_cores", lambda: cores)
    env = machine.environment(n)
    assert [env[name] for name in machine.THREAD_VARIABLES] == [share] * 3


def test_the_users_own_settings_stay(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.setenv("OMPI_MCA_hwloc_base_binding_policy", "core")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    env = machine.environment(10_000)
    assert env["OMP_NUM_THREADS"] == "5" and env["MKL_NUM_THREADS"] == "1"
    assert env["OMPI_MCA_hwloc_base_binding_policy"] == "core"
    assert machine.environment(2, threads=3)["OMP_NUM_THREADS"] == "3", (
        "--threads is the user's, too, and newer"
    )


def test_the_launchers_command_line_and_status(tmp_path, monkeypatch, capfd):
    pytest.importorskip("mpi4py")
    script = tmp_path / "script.py"
    script.touch()
    fake = _program(tmp_path / "fake mpi", 'for word; do echo "<$word>"; done; exit 7\n')
    assert launcher.run(str(script), ["a b", "--x"], 3, mpiexec=f"'{fake}' -hosts h") == 7
    # not by -m: from the parent of a folder named minidl that would import the folder
    words = [*"-hosts h -n 3".split(), sys.executable, rank.__file__, str(script), "a b", "--x"]
    assert capfd.readouterr().out.split("\n")[:-1] == [f"<{word}>" for word in words]


@pytest.mark.parametrize("options, seen", [
    ([], "300.0"), (["--no-watch"], "no"), (["--deadline", "7"], "7.0")])
def test_ranks_are_watched_by_default(options, seen, tmp_path, monkeypatch, capfd):
    pytest.importorskip("mpi4py")
    monkeypatch.delenv("MINIDL_WATCH", raising=False)
    script = tmp_path / "script.py"
    script.touch()
    fake = _program(tmp_path / "fake", 'echo "${MINIDL_WATCH-nothing}"\n')
    cli.main(["run", "-n", "2", "--mpiexec", f"'{fake}'", *options, str(script)])
    assert capfd.readouterr().out.splitlines()[0] == seen


@pytest.mark.parametrize("more, variable, here", [
    ("", "", True), (" -hosts h", "", False), ("", "SLURM_JOB_NODELIST", False)])
def test_only_where_hosts_may_be_named_do_others_reach_the_launcher(more, variable, here, tmp_path,
                                                                    monkeypatch, capfd):
    """Red before: `--mpiexec mpirun` listened on every address of the machine."""
    pytest.importorskip("mpi4py")
    for name in launcher.JOBS:
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "h")
    script = tmp_path / "script.py"
    script.touch()
    fake = _program(tmp_path / "fake", 'echo "$MINIDL_SUPERVISOR"\n')
    assert launcher.run(str(script), [], 2, mpiexec=f"'{fake}'{more}") == 0
    addresses = capfd.readouterr().out.split(",")[0]
    assert (addresses == "127.0.0.1") == here


# -- real ranks

SCRIPT = """
import os, pathlib, signal, sys, time
import numpy as np
from minidl import comm
t = comm.world()
how, folder = sys.argv[1], pathlib.Path(sys.argv[2])
print("rank", t.rank, "of", t.size, "with", os.environ["OMP_NUM_THREADS"])
if how == "return":
    sys.exit(0)
if t.rank == 1:
    if how == "exit":
        sys.exit(3)
    if how == "raise":
        raise ValueError("rank 1 has had enough")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
(folder / f"pid{t.rank}.tmp").write_text(str(os.getpid()))
(folder / f"pid{t.rank}.tmp").rename(folder / f"pid{t.rank}")
t.recv(np.zeros(1), (t.rank + 1) % t.size)     # nobody sends: only the launcher can end this
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """start(how): `minidl run -n 3` of the script above, in a process group of its own."""
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    started = []

    def heed_ctrl_c():  # tests that a shell started with & would hand down that it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def start(how):
        command = [
            sys.executable,
            "-m",
            "minidl.cli.main",
            "run",
            "-n",
            "3",
            "script.py",
            how,
            str(tmp_path),
        ]
        started.append(
            subprocess.Popen(
                command,
                cwd=tmp_path,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=heed_ctrl_c,
            )
        )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@needs_mpi
@pytest.mark.mpi
def test_three_ranks_run_and_end(start):
    process = start("return")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    threads = max(1, machine.n_cores() // 3)
    assert sorted(out.splitlines()) == [f"rank {r} of 3 with {threads}" for r in range(3)]


@needs_mpi
@pytest.mark.mpi
@pytest.mark.parametrize("how, status", [("exit", 3), ("raise", 1), ("kill", 137)])
def test_a_failing_rank_ends_all_and_its_status_is_the_commands(start, how, status):
    process = start(how)
    out, err = process.communicate(timeout=60)  # the other two wait for ever
    assert process.returncode == status
    if how == "raise":
        assert "rank 1 has had enough" in err and "script.py" in err


@needs_mpi
@pytest.mark.mpi
@pytest.mark.parametrize("how, status", [("INT", 130), ("TERM", 143), ("HUP", 129)])
def test_an_interrupt_ends_all_ranks_without_tracebacks(start, how, status, tmp_path):
    process = start("wait")
    files = [tmp_path / f"pid{r}" for r in range(3)]
    _wait_until(lambda: all(f.exists() for f in files), "the ranks to start")
    if how == "INT":  # a terminal signals the whole group
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(getattr(signal, f"SIG{how}"))
    _, err = process.communicate(timeout=60)
    assert f"minidl run: ended by SIG{how}" in err and "Traceback" not in err, err
    assert process.returncode == status
    _wait_until(lambda: not any(_alive(int(f.read_text())) for f in files), "the ranks to end")


def _wait_until(condition, what):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"waited 30 s for {what}"
        time.sleep(0.02)


def _alive(pid):
    """Whether a process runs; one that ended and that nobody has collected yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# -- the doctor


@needs_mpi
@pytest.mark.mpi
def test_the_doctor_finds_two_ranks_here(capsys):
    assert doctor.main() == 0
    out = capsys.readouterr().out
    assert "started 2 ranks" in out and "minidl is usable here" in out
    assert all(
        name in out
        for name in ("Python", "NumPy", "mpi4py", "compiler", "GPU", "PyTorch")
    )


def test_what_is_broken_makes_the_status_1_and_what_is_absent_does_not(monkeypatch, capsys):
    for name in "python numpy mpi ranks nodes compiler gpu torch pictures".split():
        monkeypatch.setattr(
            doctor,
            name,
            lambda: [doctor.Finding(doctor.WITHOUT, "it", "is not there", "pip install it")],
        )
    assert doctor.main() == 0
    assert "-> pip install it" in capsys.readouterr().out
    monkeypatch.setattr(
        doctor,
        "ranks",
        lambda: [doctor.Finding(doctor.BROKEN, "mpiexec", "is broken", "repair it")],
    )
    assert doctor.main() == 1
    assert "Not usable yet: mpiexec" in capsys.readouterr().out


@pytest.mark.parametrize(
    "said, output, words",
    [
        (["I am 0 of 1 ok", "I am 0 of 1 ok"], "", "rank 0 of 1"),
        (
            [],
            "mpirun has detected an attempt to run as root. ... --allow-run-as-root",
            "refuses to run as root",
        ),
        ([], "There are not enough slots available in the system", "not enough slots"),
        (["I am 0 of 2 few", "I am 1 of 2 few"], "", "several threads at once (THREAD_MULTIPLE)"),
        ([], "line 1\nsomething odd\n", "something odd"),
        (["I am 0 of 2 ok"], "rank 1 fell over", "rank 1 fell over"),
        ([], "", "no output"),
    ],
)
def test_why_two_ranks_did_not_meet(said, output, words):
    finding = doctor.diagnose("/usr/bin/mpiexec", "Open MPI", said, output)
    assert finding.mark == doctor.BROKEN and words in finding.text and finding.fix


@pytest.mark.parametrize(
    "text, vendor",
    [
        ("HYDRA build details:", "MPICH"),
        ("mpiexec (OpenRTE) 4.1.4", "Open MPI"),
        ("mpirun (Open MPI) 5.0.11", "Open MPI"),
        ("Intel(R) MPI Library for Linux* OS, HYDRA", "Intel MPI"),
        ("", "unknown vendor"),
    ],
)
def test_the_vendor_of_mpiexec(text, vendor, tmp_path):
    assert doctor.vendor_of(_program(tmp_path / "mpiexec", f'echo "{text}"\n')) == vendor


def test_a_mpiexec_of_another_mpi_is_found_out(tmp_path):
    """It starts two processes that do not find each other, as mpiexec of another MPI does."""
    pytest.importorskip("mpi4py")
    fake = _program(tmp_path / "mpiexec", "shift 2\necho I am 0 of 1 ok\necho I am 0 of 1 ok\n")
    assert "rank 0 of 1" in doctor.two_ranks(fake, "MPICH").text


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "cpp_compiler", lambda: ["g++"])
    (tmp_path / "file").touch()
    monkeypatch.setenv("MINIDL_CACHE", str(tmp_path / "file"))
    (finding,) = doctor.compiler()
    assert finding.mark == doctor.WITHOUT and "MINIDL_CACHE" in finding.fix
    monkeypatch.setenv("MINIDL_CACHE", str(tmp_path / "folder"))
    (finding,) = doctor.compiler()
    assert finding.mark == doctor.OK and str(tmp_path / "folder" / "kernels") in finding.text


def test_the_compiler_is_the_one_that_kernels_use_and_must_work(tmp_path, monkeypatch):
    fine = _program(tmp_path / "fine", "exit 0\n")
    monkeypatch.setenv("MINIDL_CXX", f"{fine} -O2")
    assert doctor.cpp_compiler() == [fine, "-O2"]
    for broken in (_program(tmp_path / "broken", "exit 1\n"), str(tmp_path / "absent")):
        monkeypatch.setenv("MINIDL_CXX", broken)
        (finding,) = doctor.compiler()
        assert finding.mark == doctor.BROKEN and broken in finding.text


def test_whoever_reads_the_output_may_stop_reading():
    command = f"{shlex.quote(sys.executable)} -m minidl exercise | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.startswith("01a") and not done.stderr
