"""minidl/data/stream/kafka.py: librdkafka's mock of a broker, and a broker that keeps its topics in
memory (Tansu). See servers.py."""

from types import SimpleNamespace

import numpy as np
import pytest

from minidl.data import stream
from minidl.data.stream import Gone
from minidl.data.stream.kafka import KafkaLog
from tests.data.stream import servers

BIG = 100_000  # bytes of a record: the mock keeps 5 MB of a partition


@pytest.fixture(scope="module")
def mock():
    with servers.mock() as address:
        yield address


@pytest.fixture(scope="module")
def tansu():
    server = servers.tansu()
    yield f"127.0.0.1:{server.port}"
    server.kill()


@pytest.fixture(params=["mock", "tansu"])
def url(request):
    return f"kafka://{request.getfixturevalue(request.param)}/{request.node.originalname}"


def test_any_range_is_read_as_it_was_written(url):
    servers.check_any_range(url)


def test_a_source_reads_every_offset_once(url):
    servers.check_a_source(url)


def test_what_comes_later_is_read_without_a_wait_for_more(url):
    log, values = servers.filled(url, 10)
    assert log.read(1, 4, 100).values == values[4:]
    for k in range(10, 20):
        assert log.read(1, k, 100).n == 0
        assert log.append(1, [b"%d" % k], [k]) == k
        while not (found := log.read(1, k, 100)).n:
            pass  # the end was read before: it says nothing new until it is there
        assert (found.offsets.tolist(), found.values) == ([k], [b"%d" % k])
    log.close()


def test_what_retention_has_deleted_is_named(mock):
    """A consumer of Kafka would go on at the end, in silence."""
    log = stream.open(f"kafka://{mock}/retention", partitions=4)
    for k in range(80):
        log.append(1, [b"%d" % k + bytes(BIG)], [k + 1])
    oldest = log.oldest(1)
    assert 20 < oldest < 40 and log.newest(1) == 80
    for offset in (0, oldest - 1):
        with pytest.raises(Gone, match=f"offset {offset} was deleted; the oldest offset is "
                                       f"{oldest}"):
            log.read(1, offset, 5)
    assert log.read(1, oldest, 2).offsets.tolist() == [oldest, oldest + 1]
    assert log.at_time(1, 51) == 50
    log.close()


def test_a_time_that_kafka_would_replace_is_refused(mock):
    log = stream.open(f"kafka://{mock}/times", partitions=4)
    with pytest.raises(ValueError, match="partition 0: each time must be at least 1 ms; got 0"):
        log.append(0, [b"a", b"b"], [5, 0])


def test_a_record_without_a_value_is_an_empty_one(mock):
    """Kafka's mark that a key is deleted."""
    log = stream.open(f"kafka://{mock}/deleted", partitions=4)
    log.append(0, [b"a"], [1])
    log.producer.produce(log.topic, None, b"key", 0)
    assert not log.producer.flush(10) and log.append(0, [b"b"], [2]) == 2
    assert log.read(0, 0, 3).values == [b"a", b"", b"b"]
    log.close()


def test_an_offset_beyond_the_end_is_named(mock):
    log, _ = servers.filled(f"kafka://{mock}/beyond")
    servers.check_lost(log, 101)
    assert log.read(1, 100, 1).n == 0
    log.close()


@pytest.mark.parametrize("n_errors, wait_s", [(0, 10.0), (2, 10.0), (1000, 0.05)])
def test_a_topic_that_takes_a_while_to_make_is_waited_for(n_errors, wait_s):
    """A broker that knows the topic only when it was asked some times; it makes it itself."""
    asked = []

    def list_topics(topic=None, timeout=None):
        if topic is None:
            return SimpleNamespace(controller_id=-1, brokers={})
        asked.append(topic)
        return SimpleNamespace(topics={topic: SimpleNamespace(error=len(asked) <= n_errors)})

    log = KafkaLog.__new__(KafkaLog)
    log.topic, log.wait_s, log.admin = "late", wait_s, SimpleNamespace(list_topics=list_topics)
    if n_errors < 1000:
        log._create(1)
        assert asked == ["late"] * (n_errors + 1)
    else:
        with pytest.raises(TimeoutError, match="the topic 'late' was not made in 0.05 s"):
            log._create(1)


def test_a_broker_that_does_not_answer_is_named(tansu):
    """This one says nothing of an offset beyond the end."""
    log, values = servers.filled(f"kafka://{tansu}/silent", 20)
    log.wait_s = 0.3
    with pytest.raises(TimeoutError, match="neither a record nor the end of the log .* 50"):
        log.read(1, 50, 1)
    log.wait_s = 10.0
    assert log.read(1, 15, 9).values == values[15:], "and the next read begins anew"
    log.close()


def test_a_broker_that_was_restarted_without_its_memory_is_named():
    """While the topic is not there, and when somebody has made it anew and filled it."""
    server = servers.tansu()
    try:
        url = f"kafka://127.0.0.1:{server.port}/clicks"
        log, _ = servers.filled(url, 60)
        assert log.read(1, 0, 40).n == 40
        server.kill()
        server.again()
        with pytest.raises(Gone, match="is not the one that was opened: wanted .*, the broker has"):
            for at in (40, 60):  # it may have come before
                log.read(1, at, 20)
        anew = stream.open(url, partitions=log.partitions)
        anew.append(0, [b"new"] * 90, np.arange(1, 91))
        assert anew.id != log.id, "so a snapshot's place is refused"
        with pytest.raises(Gone, match="is not the one that was opened"):
            log.read(0, 60, 8)
        anew.close()
        server.kill()
        log.wait_s = 0.2
        with pytest.raises(OSError, match="partition 1: 2 of 2 records were not acknowledged in"):
            log.append(1, [b"a", b"b"], [1, 2])
        log.close()
    finally:
        server.kill()
