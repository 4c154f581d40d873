"""A snapshot that was changed and sealed again: the checksums fit, and what it says does not. It is
refused before anything has changed, by one class, and takes no more memory than its files."""

import contextlib
import copy
import hashlib
import json

import numpy as np
import pytest

import minidl
from minidl import nn, optim, snapshot
from minidl.data.sampler import DistributedSampler
from minidl.precision.grad_scaler import GradScaler
from minidl.snapshot import SnapshotError, durable, folder
from tests.conftest import EVERY
from tests.damaged import N, at_most, damaged

INDEX = folder.index_path("", 7).name


class Places:
    """An object with rows, as a stream's source has them."""

    def __init__(self, place=((0, 5), (1, 6))):
        self.place = np.array(place)

    def state_dict(self):
        return {"partitions": 2}

    def load_state_dict(self, state):
        if state["partitions"] != 2:
            raise ValueError("two partitions are here")

    def rows(self):
        return {"place": self.place}

    def load_rows(self, rows):
        self.place = rows["place"]


class Run:
    """Everything that a snapshot may be loaded into."""

    def __init__(self, seed=0):
        minidl.manual_seed(seed)
        self.model = nn.Linear(4, 3)
        self.model.register_buffer("seen", minidl.tensor([1, 2]))
        self.optimizer = optim.Adam(self.model.parameters())
        self.scheduler = optim.lr_scheduler.StepLR(self.optimizer, 3)
        self.sampler = DistributedSampler(10)
        self.scaler, self.losses, self.places = GradScaler(), [1.5, 2.5], Places()

    def all(self):
        return dict(vars(self))

    def step(self):
        self.model(minidl.ones(2, 4)).sum().backward()
        self.optimizer.step()
        self.scheduler.step()
        self.losses.append(3.5)
        return self

    def bits(self):
        """A text of all that may change."""
        arrays = [np.asarray(x) for x in self.model.state_dict().values()]
        state = [{k: np.asarray(v).tolist() for k, v in self.optimizer.state.get(p, {}).items()}
                 for p in self.optimizer.parameters()]
        options = [{k: v for k, v in group.items() if k != "params"}
                   for group in self.optimizer.param_groups]
        return repr([[a.tolist() for a in arrays], state, options, self.losses,
                     self.scaler.state_dict(), self.scheduler.state_dict(),
                     self.sampler.state_dict(), self.places.place.tolist()])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    snapshot.save(folder, 7, **Run().step().all())
    return folder


def body_of(folder):
    return json.loads((folder / INDEX).read_text())["body"]


def copied(saved, to, body):
    for file in saved.glob("*.safetensors"):
        (to / file.name).write_bytes(file.read_bytes())
    (to / INDEX).write_bytes(durable.sealed(body))


def loads_or_refuses(folder):
    """Whether it was loaded; nothing has changed if not."""
    here = Run(1)
    before = here.bits()
    try:
        with at_most(4 << 20):
            snapshot.load(folder, **here.all())
    except SnapshotError:
        assert here.bits() == before
        return False
    # a rate of -1 is a number, and so are inf and nan
    with contextlib.suppress(ArithmeticError, ValueError), np.errstate(all="ignore"):
        here.step()  # what was loaded can be used
    return True


def test_what_was_saved_is_loaded(saved):
    here = Run(1)
    snapshot.load(saved, **here.all())
    assert here.bits() == Run().step().bits()


def places(value, path=()):
    """The paths to everything inside a JSON value."""
    items = (value.items() if isinstance(value, dict) else
             enumerate(value) if isinstance(value, list) else ())
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


OTHER = ("remove", None, "x", [], {}, -1, 1.5, True, 10**15, [10**15], ["x", "y"], {"a": 1})


def test_every_entry_of_the_index_made_another_is_refused_or_of_no_importance(saved, tmp_path):
    whole = body_of(saved)
    changes = [(path, new) for path in places(whole) for new in OTHER]
    if not EVERY:
        changes = changes[::7]  # OTHER has 12: every value comes to every second place
    copied(saved, tmp_path, whole)
    n_refused = 0
    for path, new in changes:
        body = copy.deepcopy(whole)
        at = body
        for key in path[:-1]:
            at = at[key]
        if new == "remove":
            del at[path[-1]]
        else:
            at[path[-1]] = new
        (tmp_path / INDEX).write_bytes(durable.sealed(body))
        try:
            n_refused += not loads_or_refuses(tmp_path)
        except Exception as error:
            error.add_note(f"{path} made {new!r}")
            raise
    assert n_refused > 0.8 * len(changes)


def test_a_damaged_file_whose_checksum_was_made_again(saved, tmp_path):
    body = body_of(saved)
    copied(saved, tmp_path, body)
    file = next(tmp_path.glob("*.safetensors"))
    good = file.read_bytes()
    n_refused = 0
    for data in damaged(good, n=N):
        file.write_bytes(data)
        body["files"][0] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (tmp_path / INDEX).write_bytes(durable.sealed(body))
        n_refused += not loads_or_refuses(tmp_path)
    assert n_refused > N / 4


def test_a_damaged_snapshot_is_refused(saved, tmp_path):
    """No checksum was made again: none of it is read."""
    for name in (INDEX, next(saved.glob("*.safetensors")).name):
        copied(saved, tmp_path, body_of(saved))
        good = (tmp_path / name).read_bytes()
        for data in damaged(good, n=N // 2):
            (tmp_path / name).write_bytes(data)
            if data != good and not (name == INDEX and same_body(data, good)):
                assert not loads_or_refuses(tmp_path)


def same_body(data, good):
    try:
        return json.loads(data)["body"] == json.loads(good)["body"]
    except (ValueError, KeyError, TypeError):
        return False


def changed(saved, tmp_path, change):
    body = body_of(saved)
    change(body)
    copied(saved, tmp_path, body)


@pytest.mark.parametrize("change, words", [
    (lambda b: b["tensors"]["rows/places/place"].update(shape=[2**40, 2]), "rows/places/place"),
    (lambda b: b["tensors"]["rows/places/place"].update(dtype="V1000000000"), "tensors"),
    (lambda b: b["tensors"]["exp_avg/weight"].update(dtype="V1000000000"), "tensors"),
    (lambda b: b["tensors"]["exp_avg/weight"].update(shape=[12]), "wanted every entry of 'state'"),
    (lambda b: b.update(kept={"method": "TopK", "kinds": [], "n_ranks": 2**60, "steps": 0}),
     "kept"),
    (lambda b: b["state"]["weight"]["numbers"].update(step="x"), "state"),
    (lambda b: b["groups"][0].update(lr="x"), "lr"),
    (lambda b: b["groups"][0].update(betas=[0.9]), "betas"),
    (lambda b: b["others"]["scaler"].update(growth_factor="x"), "growth_factor"),
    (lambda b: b["others"]["sampler"].update(n=11), "sampler"),
    (lambda b: b["others"]["places"].update(partitions=3), "two partitions"),
    (lambda b: b.update(step=8), "step"),
    (lambda b: b["files"][0]["holds"][0].__setitem__(2, 5), "do not hold all"),
])
def test_what_only_loading_would_notice_is_noticed_before(saved, tmp_path, change, words):
    changed(saved, tmp_path, change)
    here = Run(1)
    before = here.bits()
    with at_most(4 << 20), pytest.raises(SnapshotError, match=words):
        snapshot.load(tmp_path, **here.all())
    assert here.bits() == before
