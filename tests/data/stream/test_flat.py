"""flat.py for some seconds: what is held does not grow with the records, and a leak is seen."""

import pytest

from minidl.data.stream import FolderLog
from tests.conftest import whole_form
from tests.data.stream import flat

STEPS = 200
MOST = 300  # blocks a thousand records, where something kept of each record is 1,000


@whole_form
@pytest.mark.parametrize("leaks", [False, True])
def test_what_is_held_does_not_grow_with_the_records(tmp_path, leaks):
    samples = flat.watched(tmp_path, n_steps=STEPS, keep=[] if leaks else None)
    assert samples[-1][1] == STEPS * flat.P * flat.M, "each record once"
    for name in ("c", "l"):
        log = FolderLog(tmp_path / name)
        assert log.oldest(0) > log.newest(0) / 3, "and forgotten"
    assert (flat.slopes(samples)[1] > 2 * MOST) if leaks else (flat.slopes(samples)[1] < MOST)
