"""Paths and contents of znodes, byte by byte, and all tolerance of the readers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from zkconsumer.config.security_keys import ListenerChoice
from zkconsumer.core.common.types import BrokerEndpoint, Pattern, Subscription, TopicPartition
from zkconsumer.core.zookeeper import znodes
from zkconsumer.core.zookeeper.znodes import (
    MAX_STREAMS,
    MAX_TOPICS,
    MAX_ZNODE_BYTES,
    GroupPaths,
    broker_path,
    decode_broker,
    decode_offset,
    decode_registration,
    decode_topic,
    encode_offset,
    encode_registration,
    make_consumer_id,
    topic_path,
)
from zkconsumer.errors import ConfigError, ZnodeFormatError

PATH = "/consumers/g/ids/g_c1"
INT64 = 2**63 - 1


def static(**topics: int) -> Subscription:
    """A static subscription."""
    return Subscription(Pattern.STATIC, topics)


def registration(**fields: Any) -> bytes:
    """A static registration with changed fields. None leaves a field out."""
    document = {
        "version": 1,
        "subscription": {"t1": 2},
        "pattern": "static",
        "timestamp": "1795262003599",
    } | fields
    return json.dumps({k: v for k, v in document.items() if v is not None}).encode()


# --- paths ----------------------------------------------------------------------------------------


def test_paths_of_a_group() -> None:
    """Every path equals the JVM's."""
    paths = GroupPaths("g1")
    assert paths.group == "g1"
    assert paths.root == "/consumers/g1"
    assert paths.ids == "/consumers/g1/ids"
    assert paths.member("g1_c1") == "/consumers/g1/ids/g1_c1"
    assert paths.owners == "/consumers/g1/owners"
    assert paths.owners_topic("t") == "/consumers/g1/owners/t"
    assert paths.owner(TopicPartition("t", 3)) == "/consumers/g1/owners/t/3"
    assert paths.offsets == "/consumers/g1/offsets"
    assert paths.offsets_topic("t") == "/consumers/g1/offsets/t"
    assert paths.offset(TopicPartition("t", 3)) == "/consumers/g1/offsets/t/3"
    assert broker_path(7) == "/brokers/ids/7"
    assert topic_path("t") == "/brokers/topics/t"
    assert (znodes.BROKER_IDS, znodes.BROKER_TOPICS) == ("/brokers/ids", "/brokers/topics")


BAD_NAMES = ["", ".", "..", "a/b", "a b", "/", "a\n", "a\x00", "\u202e", "ä", "a" * 256, "../x"]

ZOOKEEPER_ALONE = ["a b", "\u202e", "ä", "100%", "a,b"]
"""ZooKeeper stores groups of these names, which clients other than Kafka's have made."""


@pytest.mark.parametrize("name", ZOOKEEPER_ALONE)
def test_a_group_may_have_any_name_that_zookeeper_stores(name: str) -> None:
    """So the tools can read and move it. A member's name may begin with it."""
    assert znodes.is_legal_group(name)
    paths = GroupPaths(name)
    assert paths.offset(TopicPartition("t", 0)) == f"/consumers/{name}/offsets/t/0"
    assert paths.member(f"{name}_m") == f"/consumers/{name}/ids/{name}_m"
    with pytest.raises(ZnodeFormatError):
        paths.member(f"{name}_a/b")
    assert not znodes.is_legal_group("\U0001f600"), "Java sees two surrogates"


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_do_not_fit_into_a_path_are_refused(name: str) -> None:
    """No group, topic or member name can lead out of its place in the tree."""
    if name not in ZOOKEEPER_ALONE:
        assert not znodes.is_legal_group(name)
        with pytest.raises(ConfigError, match=r"group\.id"):
            GroupPaths(name)
    paths = GroupPaths("g")
    for build in (topic_path, paths.owners_topic, paths.offsets_topic):
        with pytest.raises(ZnodeFormatError):
            build(name)
    with pytest.raises(ZnodeFormatError):
        paths.owner(TopicPartition(name, 0))
    if len(name) < 256:
        with pytest.raises(ZnodeFormatError):
            paths.member(name)


def test_numbers_that_do_not_fit_into_a_path_are_refused() -> None:
    """Negative and too large partition and broker numbers are refused."""
    for number in (-1, 2**31):
        with pytest.raises(ZnodeFormatError):
            GroupPaths("g").offset(TopicPartition("t", number))
        with pytest.raises(ZnodeFormatError):
            broker_path(number)


def test_member_names_may_be_what_the_jvm_allows() -> None:
    """The JVM does not check consumer.id, so another client's member name may contain visible
    ASCII."""
    assert GroupPaths("g").member("g_a:b@c").endswith("/g_a:b@c")
    assert GroupPaths("g" * 249).member("g" * 249 + "_" + "c" * 249)
    with pytest.raises(ZnodeFormatError):
        GroupPaths("g").member("c" * 513)


def test_consumer_id() -> None:
    """A member's id has the JVM's form. Leading zeros of the random part are dropped before it is
    cut."""
    upper = 0x5B79A07E12345678
    made = make_consumer_id("g1", None, "vm", 1795262003537, upper << 64 | 7)
    assert made == "g1_vm-1795262003537-5b79a07e"
    assert make_consumer_id("g", None, "vm", 5, 0x00ABCDEF0123 << 64) == "g_vm-5-abcdef01"
    assert make_consumer_id("g", None, "vm", 5, 0xAB << 64) == "g_vm-5-ab"
    assert make_consumer_id("g1", "c1", "vm", 5, 7) == "g1_c1"


@pytest.mark.parametrize(("consumer_id", "host"), [("a/b", "vm"), (None, "hôte"), ("a b", "vm")])
def test_consumer_id_that_makes_no_path(consumer_id: str | None, host: str) -> None:
    """The error for an id that does not fit into a path says to set consumer.id."""
    with pytest.raises(ConfigError, match=r"set consumer\.id"):
        make_consumer_id("g", consumer_id, host, 1, 1)


# --- registrations --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subscription", "timestamp", "data"),
    [
        (
            Subscription(Pattern.STATIC, {"t1": 2, "t2": 1, "nosuch": 1}),
            1795262003599,
            '{"version":1,"subscription":{"t1":2,"t2":1,"nosuch":1},"pattern":"static",'
            '"timestamp":"1795262003599"}',
        ),
        (
            Subscription(Pattern.WHITE_LIST, {"t[12]|a.b": 2}),
            1795262004014,
            '{"version":1,"subscription":{"t[12]|a.b":2},"pattern":"white_list",'
            '"timestamp":"1795262004014"}',
        ),
        (
            Subscription(Pattern.BLACK_LIST, {"t.*": 1}),
            1795262068665,
            '{"version":1,"subscription":{"t.*":1},"pattern":"black_list",'
            '"timestamp":"1795262068665"}',
        ),
        (
            Subscription(Pattern.STATIC, {}),
            1,
            '{"version":1,"subscription":{},"pattern":"static","timestamp":"1"}',
        ),
        (
            Subscription(Pattern.WHITE_LIST, {'a\\.b"é': 1}),
            1,
            '{"version":1,"subscription":{"a\\\\.b\\"é":1},"pattern":"white_list","timestamp":"1"}',
        ),
    ],
)
def test_registration_bytes(subscription: Subscription, timestamp: int, data: str) -> None:
    """The bytes are those of Kafka 1.1.1, escaped once. They are read back unchanged."""
    assert encode_registration(subscription, timestamp) == data.encode()
    assert decode_registration(PATH, data.encode()) == subscription


@pytest.mark.parametrize(
    "subscription",
    [
        Subscription(Pattern.WHITE_LIST, {}),
        Subscription(Pattern.BLACK_LIST, {"a": 1, "b": 1}),
        Subscription(Pattern.WHITE_LIST, {"\ud800": 1}),
        static(t=0),
        static(t=-1),
        static(t=True),
        static(t=MAX_STREAMS + 1),
        Subscription(Pattern.STATIC, {"a b": 1}),
        Subscription(Pattern.STATIC, {f"t{n}": 1 for n in range(MAX_TOPICS + 1)}),
        Subscription(Pattern.WHITE_LIST, {"a" * MAX_ZNODE_BYTES: 1}),
    ],
)
def test_registrations_that_members_could_not_read_are_not_written(
    subscription: Subscription,
) -> None:
    """A subscription that would break the group is refused before it is written."""
    with pytest.raises(ConfigError):
        encode_registration(subscription, 1)


@pytest.mark.parametrize(
    "data",
    [
        b'{ "pattern":"static", "subscription":{ "t1": 2 }, "timestamp":"1", "version":1 }',
        registration(version=None, timestamp=None),
        registration(version="x", timestamp=1795262003599),
        registration(extra=[1.5, {"a": None}], other=2**70),
        registration(pattern="no-such-pattern"),
        registration() + b" trailing text",
        b" \r\n\t" + registration(),
        b'{"subscription":{"t1":1,"t1":2},"pattern":"static"}',
        b'{"subscription":{"t1":2},"pattern":"static","x":' + b"9" * 5000 + b"}",
        b'{"subscription":{"t1":2},"pattern":"static","x":1e400}',
    ],
)
def test_tolerance_of_the_reader(data: bytes) -> None:
    """If a JVM member reads one topic with two streams, so do we."""
    assert decode_registration(PATH, data) == static(t1=2)


def test_backslashes_that_are_no_escapes() -> None:
    r"""Old writers did not escape. If parsing fails, every backslash counts as two."""
    data = rb'{"subscription":{"t\d\.x":1},"pattern":"white_list"}'
    assert dict(decode_registration(PATH, data).topics) == {r"t\d\.x": 1}
    valid = rb'{"subscription":{"t\\d":1},"pattern":"white_list"}'
    assert dict(decode_registration(PATH, valid).topics) == {r"t\d": 1}
    mixed = rb'{"subscription":{"t\\d\d":1},"pattern":"white_list"}'
    assert dict(decode_registration(PATH, mixed).topics) == {r"t\\d\d": 1}


def test_double_escaped_regex_is_taken_as_it_is() -> None:
    r"""Kafka 1.0.1 to 1.1.1 writes the regex ``a\.b`` with two backslashes, and it is read so."""
    data = rb'{"version":1,"subscription":{"a\\\\.b":1},"pattern":"white_list","timestamp":"1"}'
    assert dict(decode_registration(PATH, data).topics) == {r"a\\.b": 1}


def test_empty_subscription_is_static_whatever_the_pattern_says() -> None:
    """Without topics, the pattern does not matter."""
    assert decode_registration(PATH, registration(subscription={}, pattern="black_list")) == (
        static()
    )


def test_filter_with_several_entries_counts_with_the_first() -> None:
    """Only the first regex counts. The counts of the others only have to be integers."""
    several = registration(subscription={"a.*": 3, "b": 0}, pattern="white_list")
    assert decode_registration(PATH, several) == Subscription(Pattern.WHITE_LIST, {"a.*": 3})
    with pytest.raises(ZnodeFormatError):
        decode_registration(
            PATH, registration(subscription={"a.*": 3, "b": "1"}, pattern="white_list")
        )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"1",
        b'"x"',
        b"{",
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf" + registration(),
        registration(pattern=None),
        registration(pattern=1),
        registration(subscription=None),
        registration(subscription=["t1"]),
        registration(subscription="t1"),
        registration(subscription={"t1": 0}),
        registration(subscription={"t1": -1}),
        registration(subscription={"t1": 1.0}),
        registration(subscription={"t1": "1"}),
        registration(subscription={"t1": True}),
        registration(subscription={"t1": None}),
        registration(subscription={"t1": 2**31}),
        registration(subscription={"t1": 2**64 + 1}),
        registration(subscription={"t1": 1, "t2": 0}),
        registration(subscription={"t.*": 0}, pattern="white_list"),
        b'{"subscription":{"t1":NaN},"pattern":"static"}',
        b'{"subscription":{"t1":1},"pattern":"static","x":NaN}',
        b'{"subscription":{"t1":1},"pattern":"static","x":-Infinity}',
        b"{'subscription':{'t1':1},'pattern':'static'}",
        b'{"subscription":{"t1":1,},"pattern":"static"}',
        registration(subscription={"": 1}),
        registration(subscription={"..": 1}),
        registration(subscription={"a//b": 1}),
        registration(subscription={"a/": 1}),
        registration(subscription={"a\x00": 1}),
        registration(subscription={"a\ud800": 1}),
        registration(subscription={"a\ud800": 1}, pattern="white_list"),
        b'{"subscription":{"t\xff":1},"pattern":"static"}',
    ],
)
def test_what_fails_a_jvm_member_is_a_format_error(data: bytes) -> None:
    """If a registration makes a JVM member's attempt fail, the error names it in one plain line."""
    with pytest.raises(ZnodeFormatError) as caught:
        decode_registration(PATH, data)
    assert caught.value.path == PATH
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "data",
    [
        b" " * (MAX_ZNODE_BYTES - len(registration()) + 1) + registration(),
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b'{"subscription":{"t1":1},"pattern":"static","x":' + b"[" * 16 + b"]" * 16 + b"}",
        registration(subscription={f"t{n}": 1 for n in range(MAX_TOPICS + 1)}),
        registration(subscription={"t1": MAX_STREAMS + 1}),
        registration(subscription={"t1": 10**9}),
        registration(subscription={".*": 10**9}, pattern="white_list"),
    ],
)
def test_limits(data: bytes) -> None:
    """Beyond the limits a registration is refused, whatever its content."""
    with pytest.raises(ZnodeFormatError):
        decode_registration(PATH, data)


def test_at_the_limits() -> None:
    """At the limits a registration is still read."""
    padded = b" " * (MAX_ZNODE_BYTES - len(registration())) + registration()
    assert decode_registration(PATH, padded) == static(t1=2)
    deep = b'{"subscription":{"t1":1},"pattern":"static","x":' + b"[" * 15 + b"]" * 15 + b"}"
    assert decode_registration(PATH, deep) == static(t1=1)
    many = registration(subscription={f"t{n}": MAX_STREAMS for n in range(MAX_TOPICS)})
    assert len(decode_registration(PATH, many).topics) == MAX_TOPICS


# --- offsets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 10, INT64])
def test_offsets_are_plain_decimals(offset: int) -> None:
    """An offset is its decimal digits and nothing else."""
    assert encode_offset(offset) == str(offset).encode()
    assert decode_offset(PATH, encode_offset(offset)) == offset


@pytest.mark.parametrize("offset", [-1, INT64 + 1])
def test_offsets_that_are_never_written(offset: int) -> None:
    """-1 stands for "no offset" and is never committed."""
    with pytest.raises(ValueError, match="is not a valid offset"):
        encode_offset(offset)


def test_negative_and_padded_offsets_are_read() -> None:
    """A tool may have written -1. Leading zeros are harmless."""
    assert decode_offset(PATH, b"-1") == -1
    assert decode_offset(PATH, b"007") == 7
    assert decode_offset(PATH, str(-(2**63)).encode()) == -(2**63)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" 1",
        b"1\n",
        b"1_000",
        b"+5",
        b"1.0",
        b"0x1",
        b"--1",
        b"-",
        "\u0661".encode(),
        b"9223372036854775808",
        b"-9223372036854775809",
        b"1" * 20,
        b"1" * 100_000,
        b"\x00",
    ],
)
def test_offsets_are_read_strictly(data: bytes) -> None:
    """Anything but a 64-bit decimal number is a format error."""
    with pytest.raises(ZnodeFormatError):
        decode_offset(PATH, data)


# --- brokers --------------------------------------------------------------------------------------

BROKER = "/brokers/ids/1"


@pytest.mark.parametrize(
    "data",
    [
        b'{"version":1,"host":"h1","port":9092,"jmx_port":-1,"timestamp":"1"}',
        b'{"version":2,"host":"x","port":1,"endpoints":["PLAINTEXT://h1:9092"],"jmx_port":-1}',
        b'{"version":3,"endpoints":["SSL://h1:9093","PLAINTEXT://h1:9092"],"rack":"r"}',
        b'{"listener_security_protocol_map":{"INSIDE":"SSL","OUTSIDE":"PLAINTEXT"},'
        b'"endpoints":["INSIDE://h0:1","OUTSIDE://h1:9092","PLAINTEXT2://h2:3"],"version":4}',
        b'{"version":5,"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},'
        b'"endpoints":["PLAINTEXT://h1:9092"],"host":null,"port":-1}',
        b'{"version":99,"endpoints":["plaintext://h1:9092"]}',
    ],
)
def test_broker_versions(data: bytes) -> None:
    """Each version of a broker's registration gives its first PLAINTEXT endpoint."""
    assert decode_broker(BROKER, 1, data) == BrokerEndpoint(1, "h1", 9092)


def test_a_broker_with_several_listeners_of_a_protocol() -> None:
    """The first one counts, as in the JVM. The others are tried if it takes no connection.
    See kafka-utils #157."""
    data = (
        b'{"version":4,"listener_security_protocol_map":{"INTERNAL":"SSL","EXTERNAL":"SSL",'
        b'"ADMIN":"PLAINTEXT"},"endpoints":["INTERNAL://10.0.0.1:1","ADMIN://10.0.0.1:2",'
        b'"EXTERNAL://k.example:3","EXTERNAL://k.example:0"]}'
    )
    found = decode_broker(BROKER, 1, data, ListenerChoice("SSL"))
    assert found == BrokerEndpoint(1, "10.0.0.1", 1, (("k.example", 3),))
    many = ",".join(f'"PLAINTEXT://h{n}:1"' for n in range(100))
    found = decode_broker(BROKER, 1, b'{"version":4,"endpoints":[%s]}' % many.encode())
    assert len(found.others) == 4
    found = decode_broker(BROKER, 1, data, ListenerChoice("SSL", "External"))
    assert found == BrokerEndpoint(1, "k.example", 3), "a name chooses one, and no other is tried"
    with pytest.raises(ZnodeFormatError) as caught:
        decode_broker(BROKER, 1, data, ListenerChoice("SSL", "CLIENTS"))
    assert str(caught.value).endswith(
        "broker 1 has no listener of this name: zkconsumer.listener.name=CLIENTS; it offers SSL as "
        "'INTERNAL' at 10.0.0.1:1, PLAINTEXT as 'ADMIN' at 10.0.0.1:2, SSL as 'EXTERNAL' at "
        "k.example:3"
    )
    with pytest.raises(ZnodeFormatError) as caught:
        decode_broker(BROKER, 1, data, ListenerChoice("SSL", "ADMIN"))
    assert str(caught.value).endswith(
        "zkconsumer.listener.name=ADMIN is PLAINTEXT as 'ADMIN' at 10.0.0.1:2: set "
        "security.protocol to it"
    )


def test_the_protocol_of_hortonworks_brokers() -> None:
    """``PLAINTEXTSASL`` is SASL_PLAINTEXT. Advice for another one names only what can be set.
    See kafka-rest #278."""
    data = b'{"version":4,"endpoints":["PLAINTEXTSASL://h:6667"]}'
    for name in (None, "PlaintextSasl"):
        found = decode_broker(BROKER, 1, data, ListenerChoice("SASL_PLAINTEXT", name))
        assert found == BrokerEndpoint(1, "h", 6667)
    with pytest.raises(
        ZnodeFormatError, match="offers SASL_PLAINTEXT as 'PLAINTEXTSASL' at h:6667"
    ):
        decode_broker(BROKER, 1, data)
    odd = b'{"version":4,"endpoints":["CUSTOM://h:6667"]}'
    with pytest.raises(ZnodeFormatError) as caught:
        decode_broker(BROKER, 1, odd)
    assert "set it to what is offered" not in str(caught.value)
    assert "give a PLAINTEXT listener with bootstrap.servers" in str(caught.value)


def test_broker_with_an_ipv6_address() -> None:
    """Brackets are not part of the address."""
    data = b'{"version":4,"endpoints":["PLAINTEXT://[::1]:9092"]}'
    assert decode_broker(BROKER, 1, data) == BrokerEndpoint(1, "::1", 9092)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"version":"1","host":"h","port":1}',
        b'{"version":0,"host":"h","port":1}',
        b'{"version":true,"host":"h","port":1}',
        b'{"version":1,"host":"h"}',
        b'{"version":1,"host":null,"port":-1}',
        b'{"version":1,"host":"h","port":70000}',
        b'{"version":1,"host":"h\\n","port":1}',
        b'{"version":1,"host":"","port":1}',
        b'{"version":2}',
        b'{"version":2,"endpoints":"PLAINTEXT://h:1"}',
        b'{"version":4,"endpoints":["SSL://h:1"]}',
        b'{"version":4,"endpoints":["PLAINTEXT://:9092"]}',
        b'{"version":4,"endpoints":["PLAINTEXT://h:0"]}',
        b'{"version":4,"endpoints":[1,null,{}]}',
        b'{"version":4,"endpoints":["A://h:1"],"listener_security_protocol_map":{"A":["x"]}}',
        b'{"version":4,"endpoints":["A://h:1"],"listener_security_protocol_map":[]}',
    ],
)
def test_brokers_without_a_usable_address(data: bytes) -> None:
    """A broker that old consumers cannot reach is a format error that names it."""
    with pytest.raises(ZnodeFormatError, match=BROKER):
        decode_broker(BROKER, 1, data)


# --- topics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "partitions"),
    [
        (b'{"version":1,"partitions":{"1":[0],"0":[0]}}', (0, 1)),
        (b'{"version":1,"partitions":{"10":[0],"9":[1,2],"2":[]}}', (2, 9, 10)),
        (
            b'{"removing_replicas":{},"partitions":{"0":[1]},"topic_id":"x","adding_replicas":{},'
            b'"version":3}',
            (0,),
        ),
        (b'{"version":1,"partitions":{}}', ()),
        (b'{"version":1}', ()),
    ],
)
def test_topic(data: bytes, partitions: tuple[int, ...]) -> None:
    """Partition numbers are returned in ascending order, as numbers. Without the field there are
    none."""
    assert decode_topic("/brokers/topics/t", data) == partitions


def test_topic_with_very_many_partitions() -> None:
    """A topic's znode may be larger than a registration."""
    data = json.dumps({"partitions": {str(n): [1, 2, 3] for n in range(10_000)}}).encode()
    assert len(data) > MAX_ZNODE_BYTES
    assert decode_topic("/brokers/topics/t", data) == tuple(range(10_000))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"[]",
        b'{"partitions":[]}',
        b'{"partitions":{"-1":[0]}}',
        b'{"partitions":{" 1":[0]}}',
        b'{"partitions":{"1.0":[0]}}',
        b'{"partitions":{"2147483648":[0]}}',
        b'{"partitions":{"\xd9\xa1":[0]}}',
        b" " * (1024 * 1024) + b"{}",
    ],
)
def test_malformed_topics(data: bytes) -> None:
    """Anything but a partition list is a format error."""
    with pytest.raises(ZnodeFormatError):
        decode_topic("/brokers/topics/t", data)
