"""The page and the real join: the same pairs in the same order."""

import tempfile

import numpy as np
import pytest

from minidl.comm import simulate
from minidl.data.stream import FolderLog, Join
from minidl.plain import late_labels

EVENT = np.dtype([("id", "<i8")])


def streams(seed):
    """(clicks, labels); few different times, so that events meet and windows end with a label."""
    rng = np.random.default_rng(seed)
    clicks = [(int(time), key) for key, time in enumerate(np.sort(rng.integers(0, 40, 30)))]
    labels = [(time + int(rng.integers(0, 9)), key) for time, key in clicks if rng.random() < 0.6]
    return clicks, sorted(labels)


def real(clicks, labels, window):
    with tempfile.TemporaryDirectory() as folder:
        logs = []
        for name, events in (("clicks", clicks), ("labels", labels)):
            log = FolderLog(f"{folder}/{name}", 1)
            log.append(0, [np.array((key,), EVENT).tobytes() for _, key in events],
                       [time for time, _ in events])
            logs.append(log)

        def body(t):
            source = Join(*logs, t, key="id", of_click=EVENT, of_label=EVENT,
                          window_s=window / 1000, until=[[log.newest(0)] for log in logs])
            return [pair for parts, _ in source for part in parts
                    for pair in zip(part.samples.values["id"].tolist(), part.labels.tolist())]

        found = simulate(1, body)[0]
        for log in logs:
            log.close()
        return found


@pytest.mark.parametrize("window", [1, 4, 20])
@pytest.mark.parametrize("seed", range(4))
def test_pairs_are_the_real_ones_in_order(seed, window):
    clicks, labels = streams(seed)
    pairs = list(late_labels.join(clicks, labels, window))
    assert pairs == real(clicks, labels, window)
    assert sorted(key for key, _ in pairs) == list(range(len(clicks)))
    came = dict((key, time) for time, key in labels)
    assert dict(pairs) == {key: int(came.get(key, np.inf) <= time + window) for time, key in clicks}
