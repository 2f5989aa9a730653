"""A member of pykafka's balanced consumer: ``member.py '{"group": ..., "topics": [...], ...}'``.

Prints each message as a line of JSON: topic, partition, offset. SIGTERM: leave the group, then end.
Runs with the Python into which ``make test-peers`` has installed pykafka.
"""

import json
import signal
import sys

import pykafka
from pykafka.common import OffsetType


def main() -> None:
    """Read until SIGTERM."""
    options = json.loads(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    client = pykafka.KafkaClient(hosts=options["bootstrap"])
    (topic,) = options["topics"]
    consumer = client.topics[topic].get_balanced_consumer(
        consumer_group=options["group"],
        zookeeper_connect=options["zookeeper"],
        auto_commit_enable=True,
        auto_commit_interval_ms=200,
        auto_offset_reset=OffsetType.EARLIEST,
    )
    try:
        for message in consumer:
            sys.stdout.write(json.dumps([topic, message.partition_id, message.offset]) + "\n")
            sys.stdout.flush()
    finally:
        consumer.stop()


main()
