"""A user's own decoder reaches the streams of both connectors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.test_streams_races import batch
from zkconsumer import CoordinatorConsumerConnector, PythonDecoder
from zkconsumer.broker.records import Record
from zkconsumer.runtime.chunk_queue import Chunk
from zkconsumer.runtime.connector import StreamConnector
from zkconsumer.runtime.messages import bytes_decoder
from zkconsumer.runtime.partition_info import PartitionTopicInfo
from zkconsumer.testing import free_port


class Upper(PythonDecoder):
    """Values in capitals."""

    def decode(self, data: bytes, topic: str, partition: int, start: int) -> Iterator[list[Record]]:
        for records in super().decode(data, topic, partition, start):
            yield [(*r[:4], r[4].upper() if r[4] else None, *r[5:]) for r in records]


@pytest.mark.parametrize("decoder", [None, Upper()])
def test_the_decoder_of_the_connector_is_used(decoder: PythonDecoder | None) -> None:
    """Without one, the library's own decoder is used."""
    config = {"bootstrap.servers": f"127.0.0.1:{free_port()}", "group.id": "g"}
    connector: StreamConnector[object] = CoordinatorConsumerConnector(config, decoder=decoder)
    try:
        stream = connector._make_stream(bytes_decoder, bytes_decoder)
        connector._gate.always_open = True
        connector._gate.valid_until = float("inf")
        stream.queue.put(Chunk(PartitionTopicInfo("t", 0, 0), batch(0, 2), 0, 2))
        assert next(iter(stream)).value == (b"v" if decoder is None else b"V")
    finally:
        connector.shutdown()
