"""Send messages at a steady rate until killed: ``python sender.py BOOTSTRAP TOPIC RATE``.

The first eight bytes of a value are the time of sending, in nanoseconds since 1970.
"""

from __future__ import annotations

import signal
import sys
import time

from confluent_kafka import Producer


def main() -> None:
    """Send messages. The process ignores Ctrl-C, because the benchmark kills it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    bootstrap, topic, rate = sys.argv[1], sys.argv[2], int(sys.argv[3])
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": 1})
    step = 1 / rate
    at = time.monotonic()
    while True:
        producer.produce(topic, time.time_ns().to_bytes(8, "big") + bytes(92))
        producer.poll(0)
        at += step
        if (left := at - time.monotonic()) > 0:
            time.sleep(left)


if __name__ == "__main__":
    main()
