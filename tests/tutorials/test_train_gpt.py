"""train_gpt trains with every technique switched on, and prints what it held and sent."""

import re
import subprocess
import sys

import pytest

from minidl.exercise import ROOT

SMALL = "--steps 3 --batch 4 --context 16 --layers 2 --width 32 --heads 2 --sample 4 --sim 2"


def run(tmp_path, options):
    return subprocess.run([sys.executable, str(ROOT / "tutorials" / "train_gpt.py"),
                           *SMALL.split(), *options.split()], cwd=tmp_path, text=True,
                          capture_output=True, timeout=100)


@pytest.mark.parametrize("options", ["", "--zero 1 --amp O1", "--zero 3 --amp O2 --recompute 2",
                                     "--offload 1", "--zero 2 --amp O2 --offload 1"])
def test_small_run(options, tmp_path):
    done = run(tmp_path, options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NOT OK" not in done.stdout
    assert done.stdout.count("| yes") == (4 if "offload" in options else 5)
    assert re.search(r"^held +bytes$.*^optimizer +[1-9]", done.stdout, re.M | re.S)
    collectives = {"ring.all_reduce"} if "zero" not in options else {
        "ring.all_reduce", "ring_blocks.all_gather",
        "all_to_all.all_to_all_v" if "O2" in options else "ring_blocks.reduce_scatter"}
    for name in collectives:
        assert re.search(rf"^{name}", done.stdout, re.M)


def test_an_unknown_stage_or_level_is_an_error(tmp_path):
    for options in ("--zero 4", "--amp O4"):
        done = run(tmp_path, options)
        assert done.returncode != 0 and "want --zero 0 to 3 and --amp O0 to O3" in done.stderr
