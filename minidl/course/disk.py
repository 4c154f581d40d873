"""A disk that may lose power: what is on it after a failure in any call that saves a file.

        disk.write(name, data)      bytes in memory        fsync(name)       these bytes are safe
        rename(old, new), remove    names in memory        sync_folder()     all names are safe

An operating system writes to the disk when it likes. So after a power failure what is safe is
there; a name or bytes that are not may be there or not, the one without the other. Only a rename
is done in one step: a failure in the middle of `write` leaves a piece.

Source: Pillai et al. 2014, "All File Systems Are Not Created Equal"
Test: tests/course/test_disk.py   Tutorial: tutorials/21_fault_tolerance.py, and its grader
"""


class PowerFailure(BaseException):
    """No `except Exception` of a student's code goes on after it."""


class Disk:
    """The files of one folder. files: {name: bytes} that are safe. The power fails in call number
    `dies_at`, counted from 1; None: never. calls: what was called, lists of a name and arguments.
    """

    def __init__(self, files=(), dies_at=None):
        # name: a file = [its bytes in memory, those that are safe]
        self.names = {name: [files[name], files[name]] for name in files}
        self.safe_names = dict(self.names)
        self.dies_at, self.calls = dies_at, []

    def _power(self):
        if self.dies_at is not None and len(self.calls) >= self.dies_at:  # it stays off
            raise PowerFailure

    def _call(self, *what):
        self.calls.append(list(what))
        self._power()

    def write(self, name, data):
        """Make the file, or empty it, and write the data, in three pieces, a call each."""
        self._power()
        file = self.names.setdefault(name, [b"", b""])
        for k in range(3):
            file[0] = data[: k * len(data) // 3]
            self._call("write", name)
        file[0] = data

    def read(self, name):
        return self.names[name][0]

    def fsync(self, name):
        """The bytes of the file are safe; not its name."""
        self._call("fsync", name)
        self.names[name][1] = self.read(name)

    def rename(self, old, new):
        """The file `old` is called `new`, in one step; another of that name is gone."""
        self._call("rename", old, new)
        self.names[new] = self.names.pop(old)

    def remove(self, name):
        self._call("remove", name)
        self.names.pop(name)

    def sync_folder(self):
        """All names are safe; not what is in the files."""
        self._call("sync_folder")
        self.safe_names = dict(self.names)

    def found(self, name):
        """What a failure now may leave of the file: [(whether the names are the new ones, whether
        the bytes are, its bytes or None if there is no such file)]."""
        return [(new_names, new_bytes, names[name][not new_bytes] if name in names else None)
                for new_names, names in ((False, self.safe_names), (True, self.names))
                for new_bytes in (False, True)]


def power_failures(save, old, new):
    """save(disk, "run", new) over a file `old`, with a failure in each of its calls: (how many they
    are, [the bytes, or None, that each failure may leave])."""
    found = []
    while True:
        disk = Disk({"run": old}, dies_at=len(found) // 4 + 1)
        try:
            save(disk, "run", new)
        except PowerFailure:
            found += [data for *_, data in disk.found("run")]
        else:
            return len(disk.calls), found
