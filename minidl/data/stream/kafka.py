"""A log in a Kafka broker, or in any server with Kafka's protocol.

    log = stream.open("kafka://127.0.0.1:9092/clicks")    the topic clicks. Several brokers: a:1,b:2

By default, a Kafka consumer does three things that break exactly-once training. All three are
switched off here:

    it joins a group, which may move partitions during a run     here: partitions never move
    it commits offsets, at times given by a clock                here: the snapshot has the offsets
    if an offset is missing, it silently jumps to another one    here: it raises `Gone`

If a topic was deleted and made again, or if a broker has lost its data, the topic has another id.
The id is read when the log is opened, and is compared after each broken connection. (A broker
without a controller, such as librdkafka's mock, has no topic ids. Then the id of the cluster is
used.)

Each partition has its own consumer. The consumer's thread fetches at most QUEUED_KB of records in
advance. So a reader at the end of the log gets a new record soon after the record was acknowledged.
Source: Kreps et al. 2011 (NetDB); librdkafka's CONFIGURATION.md.
Test: tests/data/stream/test_kafka.py   Measured: benchmarks/bench_stream.py
"""

import functools
import time
from operator import itemgetter

import numpy as np

from minidl.backend import optional
from minidl.data.stream.log import Gone, Log, Records, none_of

QUEUED_KB = 16384  # kB that are fetched in advance for each partition
LOOK_S = 0.2  # seconds between two checks for a broken connection
FETCH_MS = 20  # how long the broker waits before it answers that there is no new record


class KafkaLog(Log):
    """A log in a Kafka topic.

    brokers:    host:port[,host:port...].
    partitions: the number of partitions of a new topic, or None to open a topic that exists.
    wait_s:     how many seconds an answer may take.
    config:     librdkafka's options, for all clients."""

    def __init__(self, brokers, topic, partitions=None, wait_s=10.0, **config):
        with optional("a log in Kafka", "stream"):
            import confluent_kafka
            import confluent_kafka.admin  # noqa: F401: used below
        self.kafka, self.topic, self.wait_s = confluent_kafka, topic, wait_s
        # With log_level 0, librdkafka prints no errors. This class raises them instead.
        self.config = {"bootstrap.servers": brokers, "log_level": 0, **config}
        self.admin = confluent_kafka.admin.AdminClient(self.config)
        self.producer, self.consumers, self.doubt = None, {}, False
        if topic not in self.admin.list_topics(timeout=wait_s).topics:
            if partitions is None or partitions < 1:
                raise ValueError(f"there is no topic {topic!r} at {brokers}. Pass partitions=N for "
                                 f"a new topic, with N >= 1; got partitions={partitions}. Or was "
                                 "the broker restarted without its disk?")
            self._create(partitions)
        self.partitions = len(self.admin.list_topics(topic, wait_s).topics[topic].partitions)
        self.same_partitions(f"kafka://{brokers}/{topic}", partitions)
        self.id = self._identity()

    def append(self, partition, values, times):
        self.known(self.topic, partition)
        self.as_many(partition, values, times)
        if not values:
            return self.newest(partition)
        if min(times) < 1:
            raise ValueError(f"partition {partition}: each time must be at least 1 ms; got "
                             f"{min(times)}. Kafka stores the current time in place of such a "
                             "time")
        if self.producer is None:  # idempotence stores a record only once, even if it is sent again
            self.producer = self.kafka.Producer(self.config | {"enable.idempotence": True})
        # reports: {None: the first record that was stored, error: the first record with this error}
        reports, produce = {}, self.producer.produce
        topic, heard = self.topic, reports.setdefault
        for value, when in zip(values, np.asarray(times, np.int64).tolist(), strict=True):
            while True:
                try:  # with keyword arguments and a Python callback, this loop takes twice the time
                    produce(topic, value, None, partition, heard, None, when)
                    break
                except BufferError:  # the queue is full. Waits until some records are sent
                    self.producer.poll(0.1)
        left = self.producer.flush(self.wait_s)
        first, faults = reports.pop(None, None), list(reports)
        if faults or left:
            raise OSError(f"partition {partition}: {left} of {len(values)} records were not "
                          f"acknowledged in {self.wait_s} s. {faults[0] if faults else ''}")
        return first.offset()  # with idempotence, records are acknowledged in order

    def read(self, partition, offset, n):
        self.known(self.topic, partition)
        parts, have, deadline = [], 0, time.monotonic() + self.wait_s
        # The consumer is stored again only after success, because its offset is unknown after an
        # error.
        consumer, at, end = self.consumers.pop(partition, None) or (self._consumer(), None, False)
        if at != offset:
            consumer.assign([self.kafka.TopicPartition(self.topic, partition, offset)])
            end, at = False, offset
        while have < n:
            some = consumer.consume(n - have, 0)
            if not some and not end:  # waits for a message or for the end of the partition
                some = consumer.consume(1, LOOK_S)
            if self.doubt:
                self._same(partition)
            if not some and end:
                break
            if not some and time.monotonic() > deadline:
                raise TimeoutError(
                    f"partition {partition}: neither a record nor the end of the log came for "
                    f"offset {at} in {self.wait_s} s, from the topic {self.topic!r} at "
                    f"{self.config['bootstrap.servers']}. Does the broker run, and does the log "
                    "have this offset?")
            times, end = self._times(some), False
            if len(some) and times.min() < 0:  # a message without a time is an error
                errors = [message.error() for message in some]
                for error in errors:
                    if error is not None and error.code() != self.kafka.KafkaError._PARTITION_EOF:
                        self._failed(partition, offset, error)
                end = errors[-1] is not None
                some = [message for message, error in zip(some, errors, strict=True)
                        if error is None]
                times = self._times(some)
            if some:
                parts.append(self._records(partition, some, times))
                have, at = have + len(some), int(parts[-1].offsets[-1]) + 1
        self.consumers[partition] = consumer, at, end
        return functools.reduce(Records.then, parts, none_of(partition))

    def _times(self, messages):
        """Returns the times of messages, (n,) int64. This method and _records call C functions by
        map(), because three Python calls for each record double the time of a read."""
        return np.fromiter(map(itemgetter(1), map(self.kafka.Message.timestamp, messages)),
                           np.int64, len(messages))

    def _records(self, partition, messages, times):
        first, last, n = messages[0].offset(), messages[-1].offset(), len(messages)
        # If there are no gaps, the offsets are consecutive. Otherwise the offset of each message is
        # read.
        offsets = (np.arange(first, last + 1) if last - first == n - 1 else
                   np.fromiter(map(self.kafka.Message.offset, messages), np.int64, n))
        values = list(map(self.kafka.Message.value, messages))
        return Records(partition, offsets, times,
                       values if all(values) else [value or b"" for value in values])

    def oldest(self, partition):
        return self._ends(partition)[0]

    def newest(self, partition):
        return self._ends(partition)[1]

    def close(self):
        for consumer, *_ in self.consumers.values():
            consumer.close()
        self.consumers.clear()

    def _ends(self, partition):
        where = self.kafka.TopicPartition(self.topic, self.known(self.topic, partition))
        kept = self.consumers.get(partition)
        consumer = kept[0] if kept else self._consumer()
        try:
            return consumer.get_watermark_offsets(where, timeout=self.wait_s)
        finally:
            if not kept:
                consumer.close()

    def _consumer(self):
        return self.kafka.Consumer(self.config | {
            "group.id": "minidl", "enable.auto.commit": False, "enable.partition.eof": True,
            "auto.offset.reset": "error", "fetch.wait.max.ms": FETCH_MS,
            "queued.max.messages.kbytes": QUEUED_KB, "error_cb": self._broken})

    def _broken(self, error):
        self.doubt = True

    def _same(self, partition):
        found = self._identity()
        if found != self.id:
            raise Gone(f"partition {partition}: the topic {self.topic!r} is not the one that was "
                       f"opened: wanted {self.id}, the broker has {found}. Was the broker "
                       "restarted without its disk? The old offsets are no longer valid")
        self.doubt = False

    def _failed(self, partition, offset, error):
        self._same(partition)
        if error.code() in (self.kafka.KafkaError._AUTO_OFFSET_RESET,
                            self.kafka.KafkaError.OFFSET_OUT_OF_RANGE):
            self.check(partition, offset, *self._ends(partition))
        raise OSError(f"partition {partition}, offset {offset}: {error}")

    def _identity(self):
        """Returns a text with the id of the cluster and the id of the topic. Returns None if there
        is no such topic."""
        about = self.admin.list_topics(timeout=self.wait_s)
        if self.topic not in about.topics:
            return None
        if about.controller_id not in about.brokers:
            return about.cluster_id
        asked = self.admin.describe_topics(
            self.kafka.TopicCollection([self.topic]), request_timeout=self.wait_s)
        return f"{about.cluster_id}/{asked[self.topic].result().topic_id}"

    def _create(self, partitions):
        about = self.admin.list_topics(timeout=self.wait_s)
        if about.controller_id in about.brokers:
            topic = self.kafka.admin.NewTopic(self.topic, partitions, min(3, len(about.brokers)))
            try:
                self.admin.create_topics([topic])[self.topic].result(self.wait_s)
            except self.kafka.KafkaException as error:  # another process was first
                if error.args[0].code() != self.kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        deadline = time.monotonic() + self.wait_s
        while self.admin.list_topics(self.topic, self.wait_s).topics[self.topic].error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the topic {self.topic!r} was not made in {self.wait_s} s. "
                                   "Does the broker run?")
            time.sleep(0.02)
