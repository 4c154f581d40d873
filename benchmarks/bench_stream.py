"""How fast is the log in a folder? Its peer is librdkafka's mock cluster, a broker in memory.

    python benchmarks/bench_stream.py [--records 30000] [--size 100] [--rounds 7] [--out F.json]

Folder and mock cluster write records of `size` bytes to one partition. A call writes 1,000 records
if it can write more than one. Then folder and mock cluster read the records from the beginning, in
batches of 1,000. A record counts as written when it is acknowledged. No write waits for a disk. The
mock cluster has no disk, and keeps 5 MB of a partition. The folder's records survive the end of the
process, but not a power failure.

The second part compares minidl's log in Kafka (minidl.data.stream.kafka) with confluent-kafka
without minidl. To write, confluent-kafka produces and flushes. To read, it consumes and takes the
values. The CPU time of this process is compared. Its wall time also depends on the broker, a mock
cluster in another process. Our log adds times, offsets, arrays and named errors. Each peer reads
the partition PASSES times from the beginning. One pass is not enough, because it takes only 20 ms.
Another thread makes the connection's first fetches, sometimes before the measured time and
sometimes in it. The peer is left out if it is not installed (pip install confluent-kafka).
"""

import argparse
import contextlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from common import bar, device_option, faster, finish, heading, ratio, row, take_turns

from minidl.data import stream
from minidl.data.stream import FolderLog

BATCH, PASSES = 1000, 10


def folder(records):
    """Returns two functions, (write, read). write() appends the records to a new FolderLog. read()
    reads the records of the last write(). Each function returns its time in seconds, without the
    opening and closing of the log."""
    made = []

    def write():
        made.append(tempfile.mkdtemp())
        log = FolderLog(made[-1], 1)
        start = time.perf_counter()
        for i in range(0, len(records), BATCH):
            log.append(0, records[i:i + BATCH], np.arange(i, i + BATCH))
        took = time.perf_counter() - start
        log.close()
        return took

    def read():
        log, n = FolderLog(made[-1]), 0
        start = time.perf_counter()
        while n < len(records):
            found = log.read(0, n, BATCH)
            assert found.n
            n += found.n
        took = time.perf_counter() - start
        log.close()
        for path in made:
            shutil.rmtree(path)
        made.clear()
        return took

    return write, read


def kafka(records):
    """Returns the same as folder(), for the mock cluster, which runs inside this process's
    librdkafka."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    holder = Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": 1})
    host = holder.list_topics(timeout=10).brokers[1]
    servers = {"bootstrap.servers": f"{host.host}:{host.port}"}
    topics = []

    def write():
        topics.append(f"clicks{time.time_ns()}")
        producer = Producer(servers | {"queue.buffering.max.messages": 2 * len(records)})
        producer.list_topics(topics[-1], timeout=10)
        start = time.perf_counter()
        for record in records:
            producer.produce(topics[-1], record, partition=0)
        assert not producer.flush(60)
        return time.perf_counter() - start

    def read():
        consumer = Consumer(servers | {"group.id": "bench", "enable.auto.commit": False})
        consumer.assign([TopicPartition(topics[-1], 0, 0)])
        n, start = 0, time.perf_counter()
        while n < len(records):
            found = consumer.consume(BATCH, timeout=10)
            n += len([message.value() for message in found if not message.error()])
            assert found
        took = time.perf_counter() - start
        consumer.close()
        return took

    return write, read, holder


MOCK = """
import sys
from confluent_kafka import Producer
holder = Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": 1})
broker = holder.list_topics(timeout=10).brokers[1]
print(f"{broker.host}:{broker.port}", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def broker():
    """Starts a mock cluster in its own process. Yields the address where it listens."""
    with subprocess.Popen([sys.executable, "-c", MOCK], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().strip()  # the process ends when its stdin closes


def spent(work):
    """Returns (CPU seconds of this process, wall seconds) of work()."""
    start = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - start[0], time.perf_counter() - start[1]


def ours(records, address):
    """Returns a function for common.take_turns. This function writes the records to our log and
    reads them. It returns ((CPU, wall) to write, (CPU, wall) to read), in seconds."""
    def run():
        log = stream.open(f"kafka://{address}/ours{time.time_ns()}", partitions=4)
        log.append(0, [b"connects"], [1])
        writes = spent(lambda: [log.append(0, records[i:i + BATCH], range(1, len(
            records[i:i + BATCH]) + 1)) for i in range(0, len(records), BATCH)])

        def read():
            for _ in range(PASSES):
                n = 0
                while n < len(records):
                    found = log.read(0, n, BATCH)
                    assert found.n
                    n += found.n

        log.read(0, 0, 1)  # the first read connects to the broker
        reads = spent(read)
        log.close()
        return writes, reads

    return run


def bare(records, address):
    """Returns the same as ours(), for confluent-kafka without minidl."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    def run():
        topic, servers = f"bare{time.time_ns()}", {"bootstrap.servers": address}
        producer = Producer(servers)
        producer.produce(topic, b"connects", partition=0)
        assert not producer.flush(60)

        def write():
            for i in range(0, len(records), BATCH):
                for record in records[i:i + BATCH]:
                    producer.produce(topic, record, partition=0)
                assert not producer.flush(60)

        def read():
            for _ in range(PASSES):
                consumer.assign([TopicPartition(topic, 0, 0)])
                n = 0
                while n < len(records):
                    found = consumer.consume(BATCH, timeout=10)
                    n += len([message.value() for message in found if not message.error()])

        writes = spent(write)
        consumer = Consumer(servers | {"group.id": "bench", "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, 0, 0)])
        consumer.consume(1, timeout=10)
        reads = spent(read)
        consumer.close()
        return writes, reads

    return run


def engine(records, rounds):
    """Times minidl's log in Kafka, and confluent-kafka without minidl, while they write and read
    the same records. Returns (figures, bars, rows), the arguments of common.finish."""
    with broker() as address:
        times = take_turns({"ours": ours(records, address), "bare": bare(records, address)}, rounds)
    figures, bars, rows = {}, [], []
    for i, what in enumerate(("written", "read")):
        cpu, wall = ({name: [both[i][k] for both in seconds] for name, seconds in times.items()}
                     for k in (0, 1))
        its = [faster(f"records {what} in Kafka: of bare confluent-kafka's rate, CPU time",
                      cpu["bare"], cpu["ours"], 0.8)]
        figures[f"Kafka, {what}"] = {"cpu_s": cpu, "wall_s": wall}
        print(f"Kafka, {what}: of bare confluent-kafka's rate {its[0]['figure']:.2f} by CPU time, "
              f"{ratio(wall['bare'], wall['ours']):.2f} by the clock")
        bars += its
        rows.append(row(f"records of {len(records[0])} bytes {what} in a Kafka broker",
                        "confluent-kafka alone", f"{its[0]['figure']:.2f} times its rate", its))
    return figures, bars, rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=30_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out")
    device_option(parser, "a log is a set of files")
    args = parser.parse_args()
    print(heading())
    data = np.random.default_rng(0).bytes(args.records * args.size)
    records = [data[i:i + args.size] for i in range(0, len(data), args.size)]
    peers, left_out = {"folder": folder(records)}, []
    try:
        peers["mock cluster"] = kafka(records)
    except ImportError:
        left_out.append("the mock cluster: pip install confluent-kafka")
    both = {name: lambda write=write, read=read: (write(), read())
            for name, (write, read, *_) in peers.items()}
    times, figures, bars, rows = take_turns(both, args.rounds), {}, [], []
    for i, what in enumerate(("written", "read")):
        rates = {name: args.records / statistics.median(t[i] for t in seconds)
                 for name, seconds in times.items()}
        figures[what] = rates
        print(f"{what:>8}: " + ", ".join(f"{name} {rate:,.0f} records a second"
                                         for name, rate in rates.items()))
        its, measured = [], f"{rates['folder']:,.0f} a second"
        if "mock cluster" in rates:
            its = [bar(f"records {what}: of the mock cluster's rate",
                       rates["folder"] / rates["mock cluster"], 0.5)]
            measured = f"{rates['folder'] / rates['mock cluster']:.2f} times its rate"
        bars += its
        rows.append(row(f"records of {args.size} bytes {what} in a folder's log",
                        "librdkafka's mock cluster", measured, its))
    if not left_out:
        for mine, theirs in zip((figures, bars, rows), engine(records, args.rounds), strict=True):
            mine.update(theirs) if mine is figures else mine.extend(theirs)
    finish(figures, bars, rows, args.out, left_out)


if __name__ == "__main__":
    main()
