"""Send numbered messages at a steady rate: ``python -m tests.soak.producer SETTINGS``.

SETTINGS is JSON: ``bootstrap``, ``topic``, ``partitions``, ``rate``, ``ledger``. For every
acknowledged message it writes a line ``<seconds since 1970> <partition> <offset> <number>`` to the
ledger. SIGTERM or the end of standard input ends it, once everything sent is acknowledged or given
up.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from typing import Any

from confluent_kafka import Producer

TICK = 0.05
"""Seconds between two batches of messages."""


def main() -> None:
    """Send until SIGTERM or the end of standard input."""
    settings = json.loads(sys.argv[1])
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    producer = Producer(
        {
            "bootstrap.servers": settings["bootstrap"],
            "acks": "all",
            "linger.ms": 5,
            "message.timeout.ms": 60_000,
            "request.timeout.ms": 5_000,
            "retry.backoff.ms": 50,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "topic.metadata.refresh.interval.ms": 2_000,
        }
    )
    with open(settings["ledger"], "w", buffering=1 << 14) as ledger:

        def acknowledged(error: Any, message: Any) -> None:
            if error is None:
                number = message.value().decode()
                ledger.write(
                    f"{time.time():.6f} {message.partition()} {message.offset()} {number}\n"
                )

        number, topic, partitions = 0, settings["topic"], settings["partitions"]
        began = time.monotonic()
        while not ended.wait(TICK):
            while number < (time.monotonic() - began) * settings["rate"]:
                try:
                    producer.produce(
                        topic,
                        str(number).encode(),
                        partition=number % partitions,
                        callback=acknowledged,
                    )
                except BufferError:
                    break
                number += 1
            producer.poll(0)
            ledger.flush()
        producer.flush(65)


if __name__ == "__main__":
    main()
