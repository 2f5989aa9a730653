"""Readers of znodes on random and hostile bytes: a checked value or ZnodeFormatError, quickly."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from zkconsumer.core.common.expansion import expand
from zkconsumer.core.common.types import Pattern, Subscription
from zkconsumer.core.zookeeper.znodes import (
    MAX_STREAMS,
    decode_broker,
    decode_offset,
    decode_registration,
    decode_topic,
    encode_offset,
    encode_registration,
    is_legal_topic,
)
from zkconsumer.errors import ZnodeFormatError

PATH = "/some/znode"

words = st.sampled_from(
    [
        *["version", "subscription", "pattern", "timestamp", "partitions", "endpoints", "host"],
        *["port", "static", "white_list", "black_list", "listener_security_protocol_map"],
        *["PLAINTEXT://h:1", "PLAINTEXT", "t1", ".*", "a\\.b", "0", "1", "..", "a/b", "\ud800"],
    ]
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(),
    words,
    st.text(max_size=8),
)
keys = st.one_of(words, st.text(max_size=5))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=12,
)
documents = st.fixed_dictionaries(
    {},
    optional={
        "version": st.one_of(st.integers(0, 6), scalars),
        "subscription": st.one_of(st.dictionaries(keys, scalars, max_size=4), values),
        "pattern": st.one_of(words, scalars),
        "partitions": st.one_of(st.dictionaries(keys, values, max_size=4), values),
        "endpoints": st.one_of(st.lists(scalars, max_size=4), values),
        "listener_security_protocol_map": st.one_of(st.dictionaries(keys, scalars), values),
        "host": scalars,
        "port": scalars,
    },
)


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """Return any bytes, or nearly valid JSON, perhaps with a part replaced."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.binary(max_size=200))
    data = json.dumps(draw(st.one_of(documents, values))).encode()
    if draw(st.booleans()):
        at = draw(st.integers(0, len(data)))
        until = draw(st.integers(at, min(len(data), at + 5)))
        data = data[:at] + draw(st.binary(max_size=4)) + data[until:]
    return data


def read_registration(data: bytes) -> None:
    """A registration is refused, or it is a subscription that can be expanded."""
    subscription = decode_registration(PATH, data)
    assert all(type(n) is int and 1 <= n <= MAX_STREAMS for n in subscription.topics.values())
    if subscription.pattern is not Pattern.STATIC:
        assert len(subscription.topics) == 1
    topics = expand(PATH, subscription, ["t1", "t2"], True)
    assert all(is_legal_topic(topic) for topic in topics)


def read_offset(data: bytes) -> None:
    """An offset fits into 64 bits."""
    assert -(2**63) <= decode_offset(PATH, data) < 2**63


def read_broker(data: bytes) -> None:
    """A broker has an address."""
    endpoint = decode_broker(PATH, 1, data)
    assert endpoint.host
    assert endpoint.host.isascii()
    assert 1 <= endpoint.port <= 65535


def read_topic(data: bytes) -> None:
    """Partition numbers ascend."""
    found = decode_topic(PATH, data)
    assert list(found) == sorted(set(found))
    assert all(0 <= number < 2**31 for number in found)


READERS: list[Callable[[bytes], None]] = [
    read_registration,
    read_offset,
    read_broker,
    read_topic,
]


@settings(max_examples=600, deadline=None, print_blob=True)
@given(data=hostile())
@example(data=b"")
@example(data=b'{"subscription":{"(a":1},"pattern":"white_list"}')
@example(data=b'{"subscription":{"((a{9999}){9999})":1},"pattern":"black_list"}')
def test_only_format_errors_come_out(data: bytes) -> None:
    """For any bytes, a reader returns a checked value or raises ZnodeFormatError."""
    for reader in READERS:
        message = ""
        try:
            reader(data)
        except ZnodeFormatError as error:
            message = str(error)
        assert message.isascii()
        assert len(message) < 1000


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 65536,
        b'{"":' * 16000,
        b'"' + b"\\" * 65534,
        b'{"subscription":{"' + b'\\"' * 30000,
        b"9" * 65536,
        b"-" * 65536,
        b"\xff" * 65536,
        b'{"a":"' + b"\\u" * 30000 + b'"}',
        b"{" + b",".join(b'"%d":1' % n for n in range(7000)) + b"}",
        b'{"partitions":{' + b",".join(b'"%d":[]' % n for n in range(90000)) + b"}}",
        b'{"version":2,"endpoints":["' + b":" * 60000 + b'"]}',
        b'{"version":2,"endpoints":["' + b"a" * 60000 + b'"]}',
        b'{"subscription":{"' + b"(" * 60000 + b'":1},"pattern":"white_list"}',
        b'{"subscription":{"' + b"(?:a|a)*" * 7000 + b'b":1},"pattern":"white_list"}',
    ],
    ids=lambda data: repr(data[:20]),
)
def test_large_hostile_bytes_are_read_quickly(data: bytes) -> None:
    """Bytes that are made to be slow do not stop a member: reading them takes milliseconds, not
    minutes."""
    for reader in READERS:
        start = time.thread_time()
        try:
            reader(data)
        except ZnodeFormatError:
            pass
        assert time.thread_time() - start < 5.0


def test_depth_is_refused_alike_at_any_stack_depth() -> None:
    """Whether nesting is too deep does not depend on the depth of the caller's stack."""
    data = b'{"subscription":{"t":1},"pattern":"static","x":' + b"[" * 400 + b"]" * 400 + b"}"

    def outcome(frames: int) -> str:
        if frames:
            return outcome(frames - 1)
        try:
            return str(decode_registration(PATH, data))
        except ZnodeFormatError:
            return "refused"

    assert outcome(0) == outcome(600) == "refused"


regexes = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
subscriptions = st.one_of(
    st.dictionaries(
        st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True).filter(is_legal_topic),
        st.integers(1, MAX_STREAMS),
        max_size=6,
    ).map(lambda topics: Subscription(Pattern.STATIC, topics)),
    st.builds(
        lambda pattern, regex, streams: Subscription(pattern, {regex: streams}),
        st.sampled_from([Pattern.WHITE_LIST, Pattern.BLACK_LIST]),
        regexes,
        st.integers(1, MAX_STREAMS),
    ),
)


@settings(max_examples=200, deadline=None, print_blob=True)
@given(subscription=subscriptions, timestamp=st.integers(0, 2**42))
def test_what_is_written_is_read_back(subscription: Subscription, timestamp: int) -> None:
    """Every registration that can be written is standard JSON, and is read back unchanged."""
    data = encode_registration(subscription, timestamp)
    assert decode_registration(PATH, data) == subscription
    document: dict[str, Any] = json.loads(data)
    assert list(document) == ["version", "subscription", "pattern", "timestamp"]
    assert document["timestamp"] == str(timestamp)


@given(offset=st.integers(0, 2**63 - 1))
def test_offsets_are_read_back(offset: int) -> None:
    """Every offset that can be written is read back unchanged."""
    assert decode_offset(PATH, encode_offset(offset)) == offset
