"""The hand-written fetch request against kafka-python's own classes."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse

from zkconsumer.broker.connection import error_from_code, mapped_errors
from zkconsumer.broker.fetching.fetch import VERSIONS, BrokerFetcher, _decode, _encode
from zkconsumer.broker.types import Got, Want
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import (
    BrokerError,
    BrokerUnavailableError,
    LeaderUnavailableError,
    OffsetOutOfRangeError,
)

HERE = BrokerEndpoint(7, "127.0.0.1", 9092)


def answer(version: int) -> bytes:
    """Two topics: one partition with data, one empty, one null, one with an error."""
    topic = FetchResponse.FetchableTopicResponse
    part = topic.PartitionData

    def one(index: int, error: int, records: bytes | None) -> object:
        return part(
            partition_index=index,
            error_code=error,
            high_watermark=99,
            last_stable_offset=98,
            log_start_offset=1,
            aborted_transactions=[part.AbortedTransaction(producer_id=5, first_offset=6)]
            if index == 0 and version >= 4
            else None,
            records=records,
            version=version,
        )

    response = FetchResponse(
        throttle_time_ms=0,
        error_code=0,
        session_id=0,
        responses=[
            topic(topic="tü", partitions=[one(0, 0, b"abc"), one(3, 0, b"")], version=version),
            topic(topic="u", partitions=[one(1, 0, None), one(2, 6, b"")], version=version),
        ],
        version=version,
    )
    return bytes(response.encode(version=version))


@pytest.mark.parametrize("version", VERSIONS)
def test_request_is_what_kafka_python_reads(version: int) -> None:
    """Every field arrives. Partitions keep their order, even if a topic occurs twice."""
    wanted = [Want("tü", 0, 5, 100), Want("tü", 3, 1 << 40, 200), Want("u", 1, 0, 300)]
    wanted.append(Want("tü", 9, 7, 400))
    request = FetchRequest.decode(_encode(version, wanted, 250, 17, 5000, True), version=version)
    assert (request.replica_id, request.max_wait_ms, request.min_bytes) == (-1, 250, 17)
    if version >= 3:
        assert request.max_bytes == 5000
    if version >= 4:
        assert request.isolation_level == 1
    if version >= 7:
        assert (request.session_id, request.session_epoch) == (0, -1)
        assert request.forgotten_topics_data == []
    got = [
        Want(topic.topic, part.partition, part.fetch_offset, part.partition_max_bytes)
        for topic in request.topics
        for part in topic.partitions
    ]
    assert got == wanted


@pytest.mark.parametrize("version", VERSIONS)
def test_answer_of_kafka_python_is_read(version: int) -> None:
    """Records, error codes, high watermarks and transactions are read in every version used."""
    code, _, got = _decode(version, memoryview(answer(version)), True)
    assert code == 0
    stable = 98 if version >= 4 else None
    aborted = [(5, 6)] if version >= 4 else ()
    assert got[:3] == [
        Got("tü", 0, None, 99, b"abc", stable, aborted),
        Got("tü", 3, None, 99, b"", stable),
        Got("u", 1, None, 99, b"", stable),
    ]
    assert _decode(version, memoryview(answer(version)), False)[2][0].last_stable_offset is None
    (refused,) = got[3:]
    assert isinstance(refused.error, LeaderUnavailableError)
    assert str(refused.error).startswith("fetching u-2: ")


@pytest.mark.parametrize("version", VERSIONS)
def test_answers_that_are_cut_off(version: int) -> None:
    """An answer that is cut anywhere is a BrokerError. ``tests/fuzz`` tries others."""
    data = answer(version)
    for cut in range(len(data)):
        with pytest.raises(BrokerError), mapped_errors(HERE):
            _decode(version, memoryview(data[:cut]), True)


def test_errors_are_ours() -> None:
    """Codes and foreign exceptions map to our errors. The text names what failed."""
    assert isinstance(error_from_code(1, "x"), OffsetOutOfRangeError)
    assert isinstance(error_from_code(6, "x"), LeaderUnavailableError)
    assert "topic q" in str(error_from_code(3, "topic q"))
    assert type(error_from_code(999, "x")) is BrokerError
    where = r"broker 7 at 127\.0\.0\.1:9092"
    with pytest.raises(BrokerUnavailableError, match=where), mapped_errors(HERE):
        raise ConnectionRefusedError(111, "Connection refused")
    with pytest.raises(BrokerUnavailableError, match="in time"), mapped_errors(HERE):
        raise TimeoutError


def test_every_kafka_python_error_is_mapped() -> None:
    """No exception class of kafka-python passes the mapping unchanged."""
    import kafka.errors as theirs

    classes = [
        value
        for value in vars(theirs).values()
        if isinstance(value, type) and issubclass(value, theirs.KafkaError)
    ]
    assert len(classes) > 50
    for cls in classes:
        with pytest.raises(BrokerError), mapped_errors(HERE):
            raise cls("boom")


def test_record_bytes_that_are_cut_off_are_an_error() -> None:
    """The answer is shorter than its length field. A missing part would look like no message."""
    head = struct.pack(">ih1sii", 1, 1, b"t", 1, 0) + struct.pack(">hqi", 0, 9, 10)
    with pytest.raises(ValueError, match="truncated"):
        _decode(0, memoryview(head + b"x" * 9), False)
    _, _, (got,) = _decode(0, memoryview(head + b"x" * 10), False)
    assert got.data == b"x" * 10


def test_an_error_of_the_whole_answer_is_raised() -> None:
    """Such an answer has no partitions, which is not the same as no news."""
    answer = struct.pack(">ihii", 0, 70, 0, 0)
    closed: list[bool] = []
    connection: Any = SimpleNamespace(
        endpoint=HERE,
        version=lambda *_: 10,
        exchange=lambda *_: memoryview(answer),
        close=lambda: closed.append(True),
    )
    with pytest.raises(BrokerError):
        BrokerFetcher(connection).fetch([Want("t", 0, 5, 100)], 100, 1, 1000)
    assert closed
