"""Tests that the diagrams in docs/way_to_*.md show the recorded calls, file by file."""

import json

import pytest

from minidl.cuda import dispatch
from tests import ways
from tests.mpi.launch import mpiexec

TEXT = """
## A way
```
one.py start      text in between
    two.py middle
        four.cu kernel
    three.py end
```
Asked on the way: `five.py`,
`six.py`.
Entered again: `one.py`.
"""
PAGES = "docs/way_to_*.md"
CALLS = [("one.py", "start"), ("five.py", "f"), ("two.py", "middle"), ("six.py", "f"),
         ("one.py", "helper"), ("three.py", "end"), ("three.py", "end")]


def compare(steps, calls, name):
    """Checks that all shown calls were made, and that their first times have the shown order."""
    order, steps = ways.first_calls(calls), ways.first_calls(steps)
    gone = [step for step in steps if step not in order]
    assert not gone, f"{PAGES}, {name}: shown, but not called: {gone}; delete these lines"
    places = [order.index(step) for step in steps]
    assert places == sorted(places), (
        f"{PAGES}, {name}: another order: write {[order[i] for i in sorted(places)]}")


def same_files(what, shown, recorded, name):
    assert shown == recorded, (f"{PAGES}, {name}, '{what}': it has {sorted(shown)}, recorded are "
                               f"{sorted(recorded)}: write these")


def test_a_section_is_read_and_a_recording_is_compared_with_it():
    section = ways.Section(TEXT)
    assert section.steps == [("one.py", "start"), ("two.py", "middle"), ("three.py", "end")]
    assert section.kernels == [("four.cu", "kernel")]
    assert section.asked == {"five.py", "six.py"} == ways.asked(CALLS, section.steps)
    assert section.again == {"one.py"} == ways.again(CALLS, section.steps)
    compare(section.steps, CALLS, "text")
    with pytest.raises(AssertionError, match="another order"):
        compare(section.steps, [CALLS[2], *CALLS[:2], *CALLS[3:]], "text")
    with pytest.raises(AssertionError, match="not called"):
        compare(section.steps, CALLS[:4], "text")


@pytest.fixture(scope="module")
def op_and_back():
    if not dispatch.cpu_compiler():
        pytest.skip("no C++ compiler")
    return ways.op_and_back()


@pytest.mark.parametrize("heading", ways.sections("way_to_the_kernel"))
def test_the_way_to_the_kernel_is_as_shown(op_and_back, heading):
    section, calls = ways.sections("way_to_the_kernel")[heading], op_and_back[heading].main
    compare(section.steps, calls, heading)
    same_files("Asked on the way", section.asked, ways.asked(calls, section.steps), heading)
    same_files("Entered again", section.again, ways.again(calls, section.steps), heading)
    for file, kernel in section.kernels:
        assert f"void {kernel}(" in (ways.ROOT / "kernels" / file).read_text(), (
            f"{PAGES}, {heading}: kernels/{file} has no kernel {kernel}")


def test_every_recorded_way_is_shown(op_and_back):
    shown = set(ways.sections("way_to_the_kernel"))
    assert set(op_and_back) == shown, (
        f"docs/way_to_the_kernel.md has the sections {sorted(shown)}, tests/ways.py records "
        f"{sorted(op_and_back)}: one for each")


@pytest.mark.mpi
def test_the_way_to_the_wire_is_as_shown_on_both_ranks(tmp_path):
    if not dispatch.cpu_compiler():
        pytest.skip("no C++ compiler")
    mpiexec(2, ways.__file__, "wire", tmp_path, timeout=60, check=True)
    of_ranks = [json.loads(file.read_text()) for file in tmp_path.glob("*.json")]
    ((heading, section),) = ways.sections("way_to_the_wire").items()
    assert [one["heading"] for one in of_ranks] == [heading] * 2
    for one in of_ranks:
        main, others = (list(map(tuple, one[who])) for who in ("main", "others"))
        left = [step for step in section.steps if step in main]
        right = [step for step in section.steps if step in others and step not in left]
        gone = set(section.steps) - set(left) - set(right)
        assert not gone, f"{PAGES}, {heading}: shown, but on no thread: {gone}"
        compare(left, main, "the main thread")
        compare(right, others, "the communication thread")
        same_files("Asked on the way", section.asked, ways.asked(main + others, section.steps),
                   heading)
        same_files("Entered again", section.again, ways.again(main, section.steps), heading)
