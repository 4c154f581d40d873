"""minidl/data/stream/redis.py, with a real server: Valkey's or Redis's. See servers.py."""

import numpy as np
import pytest

from minidl.comm import simulate
from minidl.data import stream
from minidl.data.stream import Gone, Source
from tests.data.stream import servers


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = servers.valkey(tmp_path_factory.mktemp("valkey"), append_only=False)
    yield server
    server.kill()


@pytest.fixture
def url(server, request):
    return f"redis://127.0.0.1:{server.port}/{request.node.name}"


def test_any_range_is_read_as_it_was_written(url):
    servers.check_any_range(url)


def test_a_source_reads_every_offset_once(url):
    servers.check_a_source(url)


def test_what_retention_has_deleted_is_named(url):
    log, values = servers.filled(url)
    reader = stream.open(url)
    assert reader.read(1, 0, 5).n == 5
    assert log.delete_before(1, 37) == 37 and (reader.oldest(1), reader.newest(1)) == (37, 100)
    assert reader.read(1, 37, 100).values == values[37:]
    for offset in (0, 36):
        with pytest.raises(Gone, match=f"partition 1: offset {offset} was deleted; the oldest "
                                       "offset is 37"):
            reader.read(1, offset, 100)
    assert log.delete_before(1, 100) == 100, "of an empty stream the next offset"
    with pytest.raises(Gone, match="offset 99 was deleted; the oldest offset is 100"):
        reader.read(1, 99, 1)
    assert log.append(1, [b"more"], [1000]) == 100
    assert reader.read(1, 100, 1).values == [b"more"]


def test_an_offset_beyond_the_end_is_named(url):
    log, _ = servers.filled(url)
    assert log.read(1, 100, 1).n == 0
    servers.check_lost(log, 101)


def test_two_writers_never_divide_an_append(url):
    logs = [stream.open(url, partitions=1), stream.open(url)]
    firsts = [logs[i % 2].append(0, [b"%d" % i] * 3, [i] * 3) for i in range(20)]
    assert firsts == list(range(0, 60, 3))
    assert logs[0].read(0, 0, 99).values == [b"%d" % (i // 3) for i in range(60)]


def test_an_entry_of_another_program_is_refused(url, server):
    log, _ = servers.filled(url, 3)
    log.writes.xadd(f"{log.name}:1", {"v": b"?"})
    with pytest.raises(ValueError, match="an entry has the id .*; want an id such as 0-1"):
        log.read(1, 0, 9)


@pytest.mark.parametrize("fields", [
    {"v": b"?"}, {"t": b"1"}, {"t": b"", "v": b"?"}, {"t": b"1.5", "v": b"?"},
    {"t": b"9" * 30, "v": b"?"}, {"t": b"\xff", "v": b"?"}, {"x": b""}])
def test_a_record_of_other_fields_is_refused(url, fields):
    log, values = servers.filled(url, 3)
    log.writes.xadd(f"{log.name}:1", fields, id="0-*")
    assert log.read(1, 0, 3).values == values
    with pytest.raises(ValueError, match="partition 1: the record at offset 3 has the fields"):
        log.read(1, 0, 9)


@pytest.mark.parametrize("about", [b"", b"[]", b'{"partitions": -1}', b"\xff", b"[" * 100000])
def test_a_log_that_does_not_say_what_it_is_is_refused(url, about):
    log, _ = servers.filled(url, 3)
    log.writes.hset(log.name, "about", about)
    with pytest.raises(ValueError, match="does not describe a log.*was altered"):
        stream.open(url)


@pytest.mark.parametrize("key", ["", ":1"])
def test_a_key_of_another_kind_is_refused(url, key):
    log, _ = servers.filled(url, 3)
    log.writes.delete(f"{log.name}{key}")
    log.writes.set(f"{log.name}{key}", b"mine")
    with pytest.raises(ValueError, match="another program"):
        stream.open(url).read(1, 0, 9)


@pytest.mark.slow
def test_a_killed_server_that_appends_loses_nothing_acknowledged(tmp_path):
    server = servers.valkey(tmp_path, append_only=True)
    try:
        url = f"redis://127.0.0.1:{server.port}/log"
        log = stream.open(url, partitions=1)

        def whole(last):
            n = log.newest(0)
            assert last <= n and n % 9 == 0, "an append is not divided"
            assert log.read(0, 0, n).values == [b"%d" % k for k in range(n)]

        servers.killed_writers(url, server, tmp_path, 3, whole)
    finally:
        server.kill()


def test_a_server_that_was_restarted_without_its_file_is_named(tmp_path):
    """Before, while and after somebody fills it anew."""
    server = servers.valkey(tmp_path, append_only=False)
    try:
        url = f"redis://127.0.0.1:{server.port}/log"
        log = stream.open(url, partitions=2)
        log.append(0, [b"old"] * 40, np.arange(40))

        def first(t):
            source = Source(log, t, per_partition=4, block=8, until=[40, 0])
            next(iter(source))
            return source.state_dict(), source.rows()

        ((state, rows),) = simulate(1, first)
        server.kill()
        server.again()
        for _ in range(2):
            with pytest.raises(Gone, match="'log' is not the one that was opened.*without its f"):
                log.read(0, 8, 8)
            with pytest.raises(ValueError, match="there is no log 'log'.*restarted without its f"):
                stream.open(url)
        anew = stream.open(url, partitions=2)
        anew.append(0, [b"new"] * 40, np.arange(40))
        with pytest.raises(Gone, match="is not the one that was opened"):
            log.read(0, 8, 8)
        with pytest.raises(Gone, match="is not the one that was opened"):
            log.append(0, [b"old"], [40])

        def resume(t):
            source = Source(anew, t, per_partition=4, block=8, until=[40, 0])
            source.load_rows(rows)
            source.load_state_dict(state)

        with pytest.raises(RuntimeError, match="stream has log .*the saved position has no me"):
            simulate(1, resume)
        for each in (log, anew):
            each.close()  # what an error's traceback holds is not closed in order
    finally:
        server.kill()


def test_an_append_is_one_script_and_a_read_one_transaction(url):
    """Counted by the server: else another writer's records could come in between."""
    log = stream.open(url, partitions=1)

    def calls(name):
        return log.writes.info("commandstats").get(f"cmdstat_{name}", {"calls": 0})["calls"]

    log.append(0, [b"first"], [0])
    scripts, transactions = calls("evalsha"), calls("exec")
    log.append(0, [b"a", b"b"], [1, 2])
    assert (calls("evalsha"), calls("exec")) == (scripts + 1, transactions)
    assert log.read(0, 1, 2).values == [b"a", b"b"]
    assert (calls("evalsha"), calls("exec")) == (scripts + 1, transactions + 1)


@pytest.mark.parametrize("again", [True, False])
def test_nothing_is_written_into_a_log_that_was_made_again(url, again):
    """Red before: there was an error, but the records had come into the other program's log, and
    delete_before() deleted its records without one."""
    log, values = servers.filled(url, 5)
    n = log.partitions
    log.writes.delete(log.name, *(f"{log.name}:{p}" for p in range(n)))
    if again:
        new = stream.open(url, partitions=n)
        new.append(1, [b"theirs"] * 3, [1, 2, 3])
    for p in range(n):
        with pytest.raises(Gone, match=f"partition {p}: the log .* is not the one that was opened.*"
                                       "none of the 2 records was written$"):
            log.append(p, [b"ours"] * 2, [7, 8])
        with pytest.raises(Gone, match="is not the one .* no record was deleted$"):
            log.delete_before(p, 3)
    if again:
        assert [new.newest(p) for p in range(n)] == [3 * (p == 1) for p in range(n)]
        assert new.read(1, 0, 9).values == [b"theirs"] * 3
        assert log.append(1, [], []) == 3, "nothing to write, nothing to refuse"
    else:
        assert not log.reads.keys(f"{log.name}*")


def test_a_stream_that_was_deleted_alone_takes_no_append_of_who_knew_it(url):
    """Red before: the records got offsets that had been others'."""
    log, values = servers.filled(url, 5)
    log.writes.delete(f"{log.name}:1")
    with pytest.raises(Gone, match="partition 1: the log .* ended at 5 after the last append .* "
                                   "ends at 0 now.*; none of the 1 records was written"):
        log.append(1, [b"more"], [9])
    assert log.newest(1) == 0
    assert stream.open(url).append(1, [b"more"], [9]) == 0  # who knows no better begins anew
