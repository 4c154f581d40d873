"""A simulated disk that may lose power in any call. Tells what is on the disk after the failure.

        disk.write(name, data)      bytes in memory        fsync(name)       these bytes are safe
        rename(old, new), remove    names in memory        sync_folder()     all names are safe

The operating system decides when it writes to the disk. So after a power failure only safe names
and safe bytes are certain. Other names and bytes may be on the disk or not. A name may be there
without its bytes. Only a rename is done in one step: a failure in the middle of `write` leaves a
part of the bytes.

Source: Pillai et al. 2014, "All File Systems Are Not Created Equal"
Test: tests/course/test_disk.py   Tutorial: tutorials/21_fault_tolerance.py, and its grader
"""


class PowerFailure(BaseException):
    """Raised if the power fails. `except Exception` in a student's code does not catch this
    error."""


class Disk:
    """The files of one folder.

    files:   {name: bytes} of the files at the start. Their names and bytes are safe.
    dies_at: the number of the call in which the power fails, counted from 1. If None, the power
             never fails.
    calls:   a list of the calls so far. A call is a list: its name, and then its arguments."""

    def __init__(self, files=(), dies_at=None):
        # {name: [the bytes in memory, the bytes that are safe on the disk]}
        self.names = {name: [files[name], files[name]] for name in files}
        self.safe_names = dict(self.names)
        self.dies_at, self.calls = dies_at, []

    def _power(self):
        if self.dies_at is not None and len(self.calls) >= self.dies_at:  # the power stays off
            raise PowerFailure

    def _call(self, *what):
        self.calls.append(list(what))
        self._power()

    def write(self, name, data):
        """Makes the file, or empties it if it exists. Then writes the data in three pieces. Each
        piece counts as a call."""
        self._power()
        file = self.names.setdefault(name, [b"", b""])
        for k in range(3):
            file[0] = data[: k * len(data) // 3]
            self._call("write", name)
        file[0] = data

    def read(self, name):
        return self.names[name][0]

    def fsync(self, name):
        """Makes the bytes of the file safe, but not its name."""
        self._call("fsync", name)
        self.names[name][1] = self.read(name)

    def rename(self, old, new):
        """Gives the file `old` the name `new`, in one step. If there is a file with the name `new`,
        it is replaced."""
        self._call("rename", old, new)
        self.names[new] = self.names.pop(old)

    def remove(self, name):
        self._call("remove", name)
        self.names.pop(name)

    def sync_folder(self):
        """Makes all names safe, but not the bytes of the files."""
        self._call("sync_folder")
        self.safe_names = dict(self.names)

    def found(self, name):
        """Returns what may be on the disk if the power fails now: four cases (new_names, new_bytes,
        data). new_names: True if the names in memory are on the disk. new_bytes: True if the bytes
        in memory are on the disk. data: the bytes of the file, or None if there is no file."""
        return [(new_names, new_bytes, names[name][not new_bytes] if name in names else None)
                for new_names, names in ((False, self.safe_names), (True, self.names))
                for new_bytes in (False, True)]


def power_failures(save, old, new):
    """Runs save(disk, "run", new) many times on a new disk with one file, "run", whose bytes are
    `old`. In run k the power fails in call k.

    Returns (n, found). n is the number of calls that `save` makes. `found` is a list with four
    elements for each call, one for each case of Disk.found. An element holds the bytes of the file
    after the failure, or None if there is no file."""
    found = []
    while True:
        disk = Disk({"run": old}, dies_at=len(found) // 4 + 1)
        try:
            save(disk, "run", new)
        except PowerFailure:
            found += [data for *_, data in disk.found("run")]
        else:
            return len(disk.calls), found
