"""Trains on a stream that never ends, and uses every record exactly once.

    log.py          the interface of a log: partitions of records with offsets; start here
    folder.py       a log in a folder, without a server
    redis.py        a log in Redis or Valkey
    kafka.py        a log in a broker with Kafka's protocol
    source.py       makes batches from a log. The batches do not depend on the number of ranks. A
                    snapshot can save the position in the log
    join.py         joins records and their late labels by event time
    prequential.py  predicts each record before training on it: AUC, log loss and calibration

    log = stream.open("file:runs/clicks", partitions=4)
    log = stream.open("redis://127.0.0.1:6379/clicks")
    log = stream.open("kafka://127.0.0.1:9092/clicks")
"""

from urllib.parse import urlsplit

from minidl.data.stream.folder import FolderLog
from minidl.data.stream.join import Join
from minidl.data.stream.kafka import KafkaLog
from minidl.data.stream.log import Gone, Log, Records
from minidl.data.stream.redis import RedisLog
from minidl.data.stream.source import Source

__all__ = ["FolderLog", "Gone", "Join", "KafkaLog", "Log", "Records", "RedisLog", "Source", "open"]

SERVERS = {"redis": RedisLog, "kafka": KafkaLog}


def open(url, **options):
    """Returns the log at `url`: file:FOLDER, redis://HOST:PORT/NAME or kafka://HOST:PORT/TOPIC.
    options: arguments for the log's class, such as partitions=4 for a new log. Raises ValueError
    for a url of another form."""
    scheme, _, rest = url.partition(":")
    if scheme == "file":
        return FolderLog(rest, **options)
    address = urlsplit(url)
    name = address.path.strip("/")
    if scheme not in SERVERS or not address.netloc or not name:
        raise ValueError("a stream's address is file:FOLDER, redis://HOST:PORT/NAME or "
                         f"kafka://HOST:PORT/TOPIC, got {url!r}")
    return SERVERS[scheme](address.netloc, name, **options)
