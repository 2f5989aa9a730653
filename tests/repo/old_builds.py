"""Tests for old builds only: those of the mends need names that the builds before lack.

The modules are those of these builds, so they are imported by name.
"""

from __future__ import annotations

import struct
import threading
import time
from importlib import import_module

from kafka.record.default_records import DefaultRecordBatchBuilder


def test_an_interrupt_inside_next_loses_no_message() -> None:
    """Ctrl-C right after a list of messages was decoded; the application continues."""
    runtime = {name: import_module(f"zkconsumer.runtime.{name}") for name in MODULES}
    gate = runtime["gate"].DeliveryGate()
    gate.extend(time.clock_gettime(runtime["gate"].CLOCK) + 3600)
    stream = runtime["streams"].KafkaStream("c", gate, timeout_ms=0)
    info = runtime["partition_info"].PartitionTopicInfo("t", 0, 0)
    for first in (0, 5):
        builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
        for number in range(5):
            builder.append(number, 1, None, b"", [])
        data = struct.pack(">q", first) + bytes(builder.build())[8:]
        stream.queue.put(runtime["chunk_queue"].Chunk(info, data, first, first + 5))
    iterator = iter(stream)
    iterator._lock = InterruptedLock(iterator._lock)
    got = []
    while len(got) < 10:
        try:
            got.append(next(iterator).offset)
        except KeyboardInterrupt:
            continue
        except import_module("zkconsumer.errors").ConsumerTimeoutError:
            break
    assert got == list(range(10))


def test_the_gate_counts_offsets_in_another_layout() -> None:
    """The command before ZooKeeper is switched off does not pass."""
    state = import_module("zkmigrate.model").GroupState
    left = import_module("zkmigrate.plan.left").what_is_left
    assert left(state("storm", foreign=("/consumers/storm/partition_0",))).left


MODULES = ("gate", "streams", "partition_info", "chunk_queue")


class InterruptedLock:
    """The first ``acquire`` outside of a ``with`` raises the exception of a signal handler."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._interrupted = False
        self.release = lock.release

    def acquire(self) -> None:
        self._lock.acquire()
        if not self._interrupted:
            self._interrupted = True
            raise KeyboardInterrupt

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()
