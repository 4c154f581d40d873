"""Grades work/21_fault_tolerance.py.   Test: tests/tutorials/test_exercises.py"""

import numpy as np

from minidl import Generator
from minidl.course.disk import Disk, PowerFailure
from minidl.course.grade import Wrong

SEED = 0  # `minidl check --student NAME` sets another one for each student

OLD, NEW = b"the old snapshot" * 3, b"a new snapshot, which is longer" * 2


def saved(module, first, dies_at):
    """Calls save(). Returns [True if save() returned, its disk calls, what is on the disk in each
    case].

    first: True if there is no old file. dies_at: the call in which the power fails."""
    disk, returned = Disk({} if first else {"run": OLD}, dies_at), True
    try:
        module.save(disk, "run", NEW)
    except PowerFailure:
        returned = False
    return [returned, disk.calls, [[*ways, (data or b"").hex()] for *ways, data in
                                   disk.found("run")]]


def second_try(module, n_calls):
    """Lets each disk call of save() fail, and then saves again. Returns the numbers of the calls
    after which the second save() fails, too."""
    failed = []
    for dies_at in range(1, n_calls + 1):
        disk = Disk({"run": OLD}, dies_at)
        try:
            module.save(disk, "run", b"lost")
        except PowerFailure:
            again = Disk({name: data for name, (data, _) in disk.names.items()})
            module.save(again, "run", NEW)
            failed += [dies_at] * (again.found("run")[0][2] != NEW)  # entry 0 has the safe data
    return failed


def grade_21a(student):
    """after a power failure at any moment the file has the old bytes or the new."""
    returned, log, found = student.run(saved, False, None)
    calls = [entry[0] for entry in log]
    if not returned or "run" not in {word for entry in log for word in entry}:
        raise Wrong("save(disk, 'run', data) has not changed the file 'run'")
    if ["write", "run"] in log:
        raise Wrong("the file itself is written: a failure in the middle leaves neither the old "
                    "bytes nor the new. Write another file, and rename it at the end")
    if ["remove", "run"] in log:
        raise Wrong("the old file is removed first: a failure before the rename leaves nothing. "
                    "rename replaces it in one step")
    if "rename" in calls and "fsync" not in calls[: calls.index("rename")]:
        raise Wrong("the new bytes must be on the disk before the rename. Without fsync before "
                    "the rename the disk may have the new name, but not the new bytes")
    for dies_at in range(1, len(log) + 1):
        for new_names, new_bytes, data in student.run(saved, False, dies_at)[2]:
            if bytes.fromhex(data) not in (OLD, NEW):
                raise Wrong(f"a power failure in call {dies_at}, {log[dies_at - 1]}, "
                            f"{'with' if new_names else 'without'} the new names and "
                            f"{'with' if new_bytes else 'without'} the new bytes on the disk: the "
                            "file has neither the old bytes nor the new")
    yield f"a power failure in each of {len(log)} calls: the old or the new"
    for first in (False, True):
        for new_names, _, data in student.run(saved, first, None)[2]:
            if bytes.fromhex(data) != NEW and not new_names:
                raise Wrong("save has returned, but after a power failure the new name is not on "
                            "the disk. sync_folder after the rename makes it safe")
            if bytes.fromhex(data) != NEW:
                raise Wrong("save has returned, but after a power failure the file does not have "
                            "the new bytes. fsync makes them safe")
    yield "when save has returned, the new bytes are there; also if there was no old file"
    if failed := student.run(second_try, len(log)):
        raise Wrong(f"after a failure in call {failed[0]}, {log[failed[0] - 1]}, saving again does "
                    "not leave the new bytes. A file that the failure left is in the way")
    yield "saving again after each of these failures"


class Toy:
    """The tutorial's run, with SEED."""

    def __init__(self):
        self.w, self.v, self.gradient = np.ones(4), np.zeros(4), np.zeros(4)
        self.random = Generator(SEED + 7)
        self.epoch = self.position = self.n_steps = 0
        self.scale, self.good_steps = 1024.0, 0
        self.data = np.random.default_rng(SEED).normal(size=(10, 4))

    def step(self):
        if self.position == len(self.data):
            self.epoch, self.position = self.epoch + 1, 0
        order = np.random.default_rng(SEED + self.epoch).permutation(len(self.data))
        x = self.data[order[self.position]]
        noise = self.random.normal(4, dtype=np.float64)
        with np.errstate(over="ignore"):
            scaled = np.float16(self.scale * (self.w - x + noise / 4)).astype(float)
        self.position, self.n_steps = self.position + 1, self.n_steps + 1
        if not np.isfinite(scaled).all():
            self.scale, self.good_steps = self.scale / 2, 0
            return
        self.gradient = scaled / self.scale
        self.v = 0.9 * self.v + self.gradient
        self.w = self.w - 0.1 / (1 + 0.02 * self.n_steps) * self.v
        self.good_steps += 1
        if self.good_steps == 3:
            self.scale, self.good_steps = 2 * self.scale, 0


NEEDED = {
    "w": "the weights", "v": "the momentum", "random": "the state of the random generator",
    "epoch": "the number of the epoch, which sets the order of the samples",
    "position": "the position in the data: without it some samples are used twice, others never",
    "n_steps": "the number of steps, which sets the rate",
    "scale": "the loss scale: another one rounds differently",
    "good_steps": "the good steps with this loss scale: it would be doubled in another step",
}


def state_at(module, n_steps):
    """Checks state_of after n_steps steps. Returns [all names, wrong names, live names, numbers].

    wrong: the value is not the run's. live: the value changes when the run continues. numbers: how
    many numbers all values have."""
    run = Toy()
    for _ in range(n_steps):
        run.step()
    wanted = {name: run.random.get_state() if name == "random" else np.array(getattr(run, name))
              for name in NEEDED}
    state = module.state_of(run)
    wrong = [name for name in state if name in wanted
             and not np.array_equal(np.array(state[name]), np.array(wanted[name]))]
    before = {name: np.array(value) for name, value in state.items() if name in NEEDED}
    run.w += 1  # in place, as an optimizer does
    run.v += 1
    run.step()
    live = [name for name in before if name not in wrong
            and not np.array_equal(np.array(state[name]), before[name])]
    n_numbers = sum(np.size(value) for value in state.values())
    return [list(map(str, state)), wrong, live, int(n_numbers)]


def grade_21b(student):
    """a run that dies at one of 10 moments and continues from its state has the same bits."""
    for n_steps in np.random.default_rng(SEED + 3).integers(1, 60, 10).tolist():
        names, wrong, live, n_numbers = student.run(state_at, n_steps)
        for name, what in NEEDED.items():
            if name not in names:
                raise Wrong(f"dies after {n_steps} steps: the state lacks run.{name}, {what}")
        if "random" in wrong:
            raise Wrong("for run.random the state is run.random.get_state()")
        if wrong:
            raise Wrong(f"dies after {n_steps} steps: the state has a wrong run.{wrong[0]}")
        if live:
            raise Wrong(f"run.{live[0]} is the live array: the run continues while its state is "
                        "written, and changes it. Copy it")
        if "data" in names:
            raise Wrong("the state has run.data, but every new Toy() has the same data. In a real "
                        "run this is the whole data set. Leave it out")
        if "gradient" in names:
            raise Wrong("the state has run.gradient, but step computes it again before it reads "
                        "it. This saves the bytes of the weights twice, for nothing")
        if extra := set(names) - set(NEEDED):
            raise Wrong(f"the state has {sorted(extra)}, but no step depends on it")
        yield f"dies after {n_steps} steps: {n_numbers} numbers, nothing forgotten"


# {exercise: {name of the mistake: ({right: wrong}, words that its message must have)}}
WRONG = {
    "21a": {
        "written in place": (
            {'temporary = name + ".tmp"': "temporary = name",
             "disk.rename(temporary, name)": "pass"}, "the file itself is written"),
        "no fsync": ({"disk.fsync(temporary)": "pass"}, "must be on the disk before the rename"),
        "no sync of the folder": ({"disk.sync_folder()": "pass"}, "sync_folder after the rename"),
        "fsync after the rename": (
            {"disk.fsync(temporary)": "pass",
             "disk.sync_folder()": "disk.fsync(name); disk.sync_folder()"},
            "bytes must be on the disk before the rename"),
        "the old one removed": (
            {"disk.rename(temporary, name)": "disk.remove(name); disk.rename(temporary, name)"},
            "removed first"),
    },
    "21b": {
        "the generator": ({'"random": run.random.get_state(),': ""}, "lacks run.random"),
        "the loss scale": ({'"scale": run.scale, ': ""}, "lacks run.scale"),
        "the position": ({'"position": run.position, ': ""}, "lacks run.position"),
        "live arrays": ({'"v": run.v.copy()': '"v": run.v'}, "is the live array"),
        "the gradient": (
            {'"scale": run.scale,': '"scale": run.scale, "gradient": run.gradient.copy(),'},
            "for nothing"),
    },
}
