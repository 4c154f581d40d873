"""minidl/course/disk.py: what a power failure may leave, call by call."""

import pytest

from minidl.course.disk import Disk, PowerFailure, power_failures

OLD, NEW = b"old" * 4, b"new!" * 3


def left(disk, name="run"):
    return {data for *_, data in disk.found(name)}


def atomic(disk, name, data):
    disk.write("tmp", data)
    disk.fsync("tmp")
    disk.rename("tmp", name)
    disk.sync_folder()


def test_what_is_safe_is_there_in_all_four_ways():
    assert left(Disk({"run": OLD})) == {OLD}
    disk = Disk({"run": OLD})
    atomic(disk, "run", NEW)
    assert left(disk) == {NEW} and left(disk, "tmp") == {None} and disk.read("run") == NEW


def test_bytes_and_names_are_lost_apart():
    disk = Disk()
    disk.write("run", NEW)
    assert left(disk) == {None, b"", NEW}  # no name; a name without bytes; both
    disk.fsync("run")
    assert left(disk) == {None, NEW}
    disk.sync_folder()
    assert left(disk) == {NEW}
    disk.rename("run", "other")
    assert left(disk) == {NEW, None} == left(disk, "other")
    disk.remove("other")
    assert disk.found("other") == [(False, False, None), (False, True, None), (True, False, None),
                                   (True, True, None)]


def test_names_without_their_bytes_are_said_so():
    disk = Disk({"run": OLD})
    disk.write("tmp", NEW)
    disk.rename("tmp", "run")
    assert disk.found("run") == [(False, False, OLD), (False, True, OLD), (True, False, b""),
                                 (True, True, NEW)]


@pytest.mark.parametrize("dies_at, piece", [(1, b""), (2, NEW[:4]), (3, NEW[:8])])
def test_a_failure_within_a_write_leaves_a_piece(dies_at, piece):
    disk = Disk({"run": OLD}, dies_at)
    with pytest.raises(PowerFailure):
        disk.write("run", NEW)
    assert left(disk) == {OLD, piece} and disk.calls == [["write", "run"]] * dies_at


def test_who_catches_the_failure_has_no_power_either():
    disk = Disk({"run": OLD}, dies_at=1)
    for call, arguments in ((disk.write, ("tmp", NEW)), (disk.write, ("run", NEW)),
                            (disk.rename, ("tmp", "run")), (disk.remove, ("run",)),
                            (disk.fsync, ("tmp",)), (disk.sync_folder, ())):
        with pytest.raises(PowerFailure):
            call(*arguments)
    assert left(disk) == {OLD} and left(disk, "tmp") == {None, b""}


def test_every_call_of_a_save_is_tried():
    n_calls, found = power_failures(atomic, OLD, NEW)
    assert n_calls == 6 and len(found) == 24 and set(found) == {OLD, NEW}

    def in_place(disk, name, data):
        disk.write(name, data)

    n_calls, found = power_failures(in_place, OLD, NEW)
    assert n_calls == 3 and set(found) == {OLD, b"", NEW[:4], NEW[:8]}
