"""The runner of all tutorials joins their tables, and names what is not ok."""

import subprocess
import sys

import pytest

from minidl.course import exercise, table

SCRIPT = '''
"""{number}  A script."""
from minidl.course.tutorial import Table, launch, say

def main(t, args):
    table = Table(t)
    table.row("bytes", {bytes}, 6, "exact")
    {last}

if __name__ == "__main__":
    launch(main)
'''


@pytest.fixture
def run_all(tmp_path, monkeypatch):
    """Runs run_all.py over scripts, {number: what is in them}; (status, lines, folder)."""
    runner = tmp_path / "tutorials" / "run_all.py"
    runner.parent.mkdir()
    runner.write_text((exercise.ROOT / "tutorials" / "run_all.py").read_text())
    monkeypatch.setenv("PYTHONPATH", str(exercise.ROOT))

    def run(scripts, *numbers):
        for number, fields in scripts.items():
            text = SCRIPT.format(**{"number": number, "bytes": 6, "last": "return table"} | fields)
            (runner.parent / f"{number}_script.py").write_text(text)
        done = subprocess.run([sys.executable, str(runner), *numbers], cwd=tmp_path, text=True,
                              capture_output=True, timeout=60)
        return done.returncode, done.stdout.splitlines(), done.stderr

    return run


def test_one_table_of_all_rows_and_the_failed_ones_are_named(run_all, tmp_path):
    old = tmp_path / "out" / "03_script.json"
    old.parent.mkdir()
    table.save([table.row("bytes", 6, 6, "exact")], old)
    status, lines, _ = run_all({"01": {}, "02": {"bytes": 5}, "03": {"last": "1 / 0"}})
    assert status == 1
    printed = lines[max(i for i, line in enumerate(lines) if line.startswith("tutorial ")) :]
    cells = [[cell.strip() for cell in line.split("|")] for line in printed]
    assert ["01_script", "bytes", "6", "6", "exact", "yes"] in cells
    assert ["02_script", "bytes", "5", "6", "exact", "NO"] in cells
    assert ["03_script", "table", "none", "in out/03_script.json", "exact", "NO"] in cells
    failed = ["02_script: bytes", "02_script: exit status", "03_script: table"]
    assert printed[-1] == f"NOT OK: {'; '.join(failed)}; 03_script: exit status"


def test_pictures_are_drawn_in_every_language_for_the_site(run_all):
    asked = "say(t, f'every language: {args.every_language}'); return table"
    lines = run_all({"01": {"last": asked}})[1]
    assert "every language: True" in lines


def test_numbers_choose_and_an_unknown_one_is_an_error(run_all):
    scripts = {"01": {}, "02": {"bytes": 5}}
    status, lines, _ = run_all(scripts, "01")
    assert status == 0 and not any("02_script" in line for line in lines)
    status, _, err = run_all({}, "01", "07")
    assert status == 1 and "no tutorial 07; there are 01, 02" in err
