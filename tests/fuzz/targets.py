"""A fuzzing target for every decoder of bytes that other programs wrote.

A target accepts any bytes. It may raise only the errors that its callers expect, and it has to end
within ``limit_s`` seconds of CPU time. ``seeds`` are valid inputs, from which mutations start.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

from crc32c import crc32c
from kafka.protocol.consumer import (
    FetchResponse,
    JoinGroupResponse,
    ListOffsetsResponse,
    OffsetCommitResponse,
    OffsetFetchResponse,
    SyncGroupResponse,
)
from kafka.protocol.metadata import ApiVersionsResponse, FindCoordinatorResponse, MetadataResponse
from kafka.record import MemoryRecordsBuilder
from zkaudit.decode.batches import read_log, read_snapshot, read_snapshot_sessions
from zkaudit.decode.offsets_topic import decode as decode_offsets_record
from zkaudit.decode.txnlog import FILE_HEADER, BodyError, decode_payload
from zkaudit.errors import LogFormatError
from zkaudit.group import Act, Event, audit_group
from zkaudit.group.live_moves import is_lock_record
from zkaudit.sources.journal import read_journal_rows
from zkmigrate.apply import journal as migration_journal
from zkmigrate.errors import JournalError, PlanFileError
from zkmigrate.formats import decisions_file, offset_csv, plan_file
from zkmigrate.model import Before, KafkaOffset, Mirror, Record, Stage, Store
from zkmigrate.plan.layout import looks_like_offsets
from zkmigrate.stores import migration_marker, mirror_maker, mirror_state, record

from tests.sim.runs.broker_log import make_batch
from zkconsumer.admin import ids_lock, offset_files, topics
from zkconsumer.broker import api_versions, sasl
from zkconsumer.broker.cluster_reader import read_cluster
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.fetching import codecs, columns
from zkconsumer.broker.fetching.fetch import BrokerFetcher
from zkconsumer.broker.fetching.list_offsets import EARLIEST, list_offsets
from zkconsumer.broker.fetching.records import PythonDecoder, scan
from zkconsumer.broker.fetching.transactions import without_aborted
from zkconsumer.broker.groups import offset_times
from zkconsumer.broker.groups.classic_client import GroupClient
from zkconsumer.broker.groups.coordinator_calls import fetch_offsets
from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
from zkconsumer.broker.known_brokers import KnownBrokers
from zkconsumer.broker.messages import (
    DescribeConfigsResponse,
    DescribeGroupsResponse,
    ListGroupsResponse,
    OffsetDeleteResponse,
)
from zkconsumer.broker.metadata import fetch_metadata
from zkconsumer.broker.types import Want
from zkconsumer.cli.consume.formatter import _DESERIALIZERS, _deserializer
from zkconsumer.config.properties import read_properties
from zkconsumer.core.common.expansion import expand
from zkconsumer.core.common.types import (
    BrokerEndpoint,
    ConsumerThreadId,
    Pattern,
    Subscription,
    TopicPartition,
)
from zkconsumer.core.groups import commands
from zkconsumer.core.groups.assignors import strategies
from zkconsumer.core.groups.assignors.sticky import StickyStrategy
from zkconsumer.core.groups.events import GroupMember
from zkconsumer.core.groups.formats import consumer_protocol as wire
from zkconsumer.core.migration import znodes as live_znodes
from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.zookeeper import events as zk_events, znodes
from zkconsumer.core.zookeeper.machine import RebalanceMachine
from zkconsumer.core.zookeeper.ops import Node, Stat
from zkconsumer.core.zookeeper.view import MemberSpec
from zkconsumer.errors import (
    BrokerError,
    ConfigError,
    InvalidMessageError,
    JournalFormatError,
    OffsetsFileError,
    ZnodeFormatError,
)
from zkconsumer.journal.json_lines import read_journal
from zkconsumer.journal.recorder import Recorder, run_entry
from zkconsumer.journal.replay import replay
from zkconsumer.zk.multi import MultiRead, MultiWrite

ZNODE_S: Final = 0.05
"""Limit for a znode, in seconds of CPU time."""
ANSWER_S: Final = 0.1
"""Limit for an answer, a record batch or a line of a file, in seconds of CPU time."""


class Target(NamedTuple):
    """One decoder. Its callers handle ``errors``."""

    run: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    limit_s: float
    seeds: tuple[bytes, ...]


def _kind(limit_s: float, *errors: type[Exception]) -> Callable[..., Target]:
    """Return what makes targets with these errors. Its arguments: ``run`` and the seeds."""
    return lambda run, *seeds: Target(run, errors, limit_s, seeds)


_znode: Final = _kind(ZNODE_S, ZnodeFormatError)
_any_znode: Final = _kind(ZNODE_S)
_short: Final = _kind(ZNODE_S, ValueError)
_answer: Final = _kind(ANSWER_S, BrokerError)
_any_answer: Final = _kind(ANSWER_S)
_messages: Final = _kind(ANSWER_S, InvalidMessageError)
_compressed: Final = _kind(1.0, InvalidMessageError)
_logged: Final = _kind(ANSWER_S, LogFormatError)


# -- znodes ----------------------------------------------------------------------------------------

_REGISTRATION: Final = b'{"version":1,"subscription":{"t0":2},"pattern":"static","timestamp":"15"}'
_FILTER: Final = b'{"version":1,"subscription":{"a.*|b":1},"pattern":"white_list","timestamp":"1"}'
_BROKER: Final = (
    b'{"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":'
    b'["PLAINTEXT://h:9092"],"jmx_port":-1,"host":"h","timestamp":"1","port":9092,"version":4}'
)
_TOPICS: Final = ("a", "abc", "b", "t0", "a" * 200 + "!", "__consumer_offsets")


def _subscribed(data: bytes) -> object:
    found = znodes.decode_registration("/z", data)
    assert all(type(n) is int and 1 <= n <= znodes.MAX_STREAMS for n in found.topics.values())
    assert found.pattern is Pattern.STATIC or len(found.topics) == 1
    topics = expand("/z", found, _TOPICS, exclude_internal=True)
    assert all(map(znodes.is_legal_topic, topics))
    return topics


def _stored_offset(data: bytes) -> None:
    assert -(2**63) <= znodes.decode_offset("/z", data) < 2**63


def _broker(data: bytes) -> None:
    found = znodes.decode_broker("/z", 1, data)
    assert found.host
    assert found.host.isascii()
    assert 1 <= found.port <= 65535


def _topic(data: bytes) -> None:
    found = znodes.decode_topic("/z", data)
    assert list(found) == sorted(set(found))
    assert all(0 <= number < 2**31 for number in found)


def _audited_group(data: bytes) -> object:
    """The same bytes in each znode of a group whose history is judged."""
    znodes = (
        "ids", "ids/g_a", "owners/t/0", "offsets/t/0", "migration", "live/mode", "live/members/g_a"
    )  # fmt: skip
    return audit_group(
        [
            Event(
                zxid,
                0,
                zxid,
                5,
                act,
                f"/consumers/g/{znode}",
                data,
                znode.startswith(("ids/", "owners", "live/members")),
                version=1,
            )
            for zxid, (act, znode) in enumerate(product((Act.CREATE, Act.SET), znodes), 1)
        ]
    )


def _regex(data: bytes) -> object:
    text = data.decode("utf-8", "replace")
    return expand("/z", Subscription(Pattern.WHITE_LIST, {text: 1}), _TOPICS, False)


def _node(data: bytes) -> Node:
    return Node(data, Stat(1, 1, 0, 0))


# -- answers of brokers ----------------------------------------------------------------------------

_BROKER_1: Final = BrokerEndpoint(1, "127.0.0.1", 9092)
_TP: Final = TopicPartition("t", 0)


class _Socket:
    """A connected socket. Its broker supports ``versions`` and gives ``answer`` to all other
    requests."""

    def __init__(self, answer: bytes, versions: bytes | None) -> None:
        self._answer = answer
        self._versions = versions
        self._unread = b""

    def sendall(self, frame: bytes) -> None:
        """Accept a request. Its answer can then be received."""
        key, correlation = struct.unpack_from(">h2xi", frame, 4)
        known = key == api_versions.API_VERSIONS and self._versions is not None
        body = struct.pack(">i", correlation) + (self._versions if known else self._answer)  # type: ignore[operator]
        self._unread = struct.pack(">i", len(body)) + body

    def recv_into(self, room: memoryview, size: int, _flags: int) -> int:
        """Return bytes that were not received yet."""
        part, self._unread = self._unread[:size], self._unread[size:]
        room[: len(part)] = part
        return len(part)

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_args: None


def _versions(highest: int) -> bytes:
    version = ApiVersionsResponse.ApiVersion
    keys = [version(api_key=key, min_version=0, max_version=highest) for key in range(60)]
    return bytes(ApiVersionsResponse(error_code=0, api_keys=keys).encode(version=0))


@contextmanager
def _answering(answer: bytes, versions: bytes | None) -> Iterator[BrokerConnection]:
    dialed = _Socket(answer, versions), 0
    with (
        mock.patch("zkconsumer.broker.dialing.dial", return_value=dialed),
        mock.patch("zkconsumer.broker.probes._answers", return_value=True),
    ):
        yield BrokerConnection(_BROKER_1, "c", 1.0, 0)


def _asked(ask: Callable[[BrokerConnection], object], highest: int) -> Callable[[bytes], object]:
    """Run ``ask`` against a broker that supports all requests up to version ``highest``."""
    versions = _versions(highest)

    def run(answer: bytes) -> object:
        with _answering(answer, versions) as connection:
            return ask(connection)

    return run


def _open(answer: bytes) -> object:
    with _answering(answer, None) as connection:
        return connection.open()


def _commanded(command: Any, highest: int) -> Callable[[bytes], object]:
    """Carry out a member's ``command``. It must not raise."""
    versions = _versions(highest)

    def run(answer: bytes) -> object:
        with _answering(answer, versions):
            brokers = KnownBrokers(lambda: [_BROKER_1], lambda _broker: 0)
            client = GroupClient(
                "g", "c", None, brokers, session_timeout=1, rebalance_timeout=1, timeout=1
            )
            client.coordinator = _BROKER_1
            return client.execute(command)

    return run


def _administered(
    ask: Callable[[GroupCoordinators], object], highest: int
) -> Callable[[bytes], object]:
    """Run a tool's request to a coordinator."""
    versions = _versions(highest)

    def run(answer: bytes) -> object:
        with (
            _answering(answer, versions),
            GroupCoordinators("c", lambda: [_BROKER_1], timeout=1, patience=0, backoff=0) as asked,
        ):
            asked._coordinators["g"] = _BROKER_1
            return ask(asked)

    return run


def _listed_groups() -> bytes:
    group = ListGroupsResponse.ListedGroup(group_id="g", protocol_type="consumer")
    return _encoded(ListGroupsResponse(error_code=0, groups=[group]), 0)


def _described_group() -> bytes:
    kind = DescribeGroupsResponse.DescribedGroup
    member = kind.DescribedGroupMember(
        member_id="m", client_id="c", client_host="/h", member_metadata=b"", member_assignment=b""
    )
    group = kind(
        error_code=0,
        group_id="g",
        group_state="Stable",
        protocol_type="consumer",
        protocol_data="range",
        members=[member],
    )
    return _encoded(DescribeGroupsResponse(groups=[group]), 0)


def _described_broker() -> bytes:
    kind = DescribeConfigsResponse.DescribeConfigsResult
    config = kind.DescribeConfigsResourceResult(
        name="offsets.retention.minutes",
        value="10080",
        read_only=False,
        config_source=5,
        is_sensitive=False,
        synonyms=[],
        version=1,
    )
    result = kind(
        error_code=0,
        error_message="",
        resource_type=4,
        resource_name="1",
        configs=[config],
        version=1,
    )
    return _encoded(DescribeConfigsResponse(results=[result]), 1)


def _deleted() -> bytes:
    kind = OffsetDeleteResponse.OffsetDeleteResponseTopic
    part = kind.OffsetDeleteResponsePartition(partition_index=0, error_code=0)
    answer = OffsetDeleteResponse(error_code=0, topics=[kind(name="t", partitions=[part])])
    return _encoded(answer, 0)


def _fetch(committed: bool, connection: BrokerConnection) -> object:
    fetcher = BrokerFetcher(connection, committed=committed)
    return fetcher.fetch([Want("t", 0, 0, 1000)], 1, 1, 1000)


def _encoded(message: Any, version: int) -> bytes:
    return bytes(message.encode(version=version))


def _metadata(version: int) -> bytes:
    topic = MetadataResponse.MetadataResponseTopic
    part = topic.MetadataResponsePartition(
        error_code=0, partition_index=0, leader_id=1, replica_nodes=[1], isr_nodes=[1]
    )
    broker = MetadataResponse.MetadataResponseBroker(node_id=1, host="h", port=9092)
    return _encoded(
        MetadataResponse(
            brokers=[broker],
            controller_id=1,
            cluster_id="c",
            topics=[topic(error_code=0, name="t", is_internal=False, partitions=[part])],
        ),
        version,
    )


def _joined(version: int) -> bytes:
    kind = JoinGroupResponse
    member = kind.JoinGroupResponseMember(member_id="m", metadata=b"\0\0", version=version)
    return _encoded(
        kind(
            error_code=0,
            generation_id=1,
            protocol_name="range",
            leader="m",
            member_id="m",
            members=[member],
        ),
        version,
    )


def _fetched_offsets(version: int) -> bytes:
    topic = OffsetFetchResponse.OffsetFetchResponseTopic
    part = topic.OffsetFetchResponsePartition(
        partition_index=0, committed_offset=5, metadata="", error_code=0
    )
    return _encoded(
        OffsetFetchResponse(topics=[topic(name="t", partitions=[part])], error_code=0), version
    )


def _committed(version: int) -> bytes:
    topic = OffsetCommitResponse.OffsetCommitResponseTopic
    part = topic.OffsetCommitResponsePartition(partition_index=0, error_code=0)
    return _encoded(OffsetCommitResponse(topics=[topic(name="t", partitions=[part])]), version)


def _listed() -> bytes:
    topic = ListOffsetsResponse.ListOffsetsTopicResponse
    part = topic.ListOffsetsPartitionResponse(
        partition_index=0, error_code=0, timestamp=-1, offset=7
    )
    return _encoded(ListOffsetsResponse(topics=[topic(name="t", partitions=[part])]), 1)


def _fetched(version: int, data: bytes) -> bytes:
    topic = FetchResponse.FetchableTopicResponse
    aborted = topic.PartitionData.AbortedTransaction(producer_id=1, first_offset=0)
    part = topic.PartitionData(
        partition_index=0,
        error_code=0,
        high_watermark=3,
        last_stable_offset=3,
        log_start_offset=0,
        aborted_transactions=[aborted] if version >= 4 else None,
        records=data,
    )
    return _encoded(
        FetchResponse(error_code=0, session_id=0, responses=[topic(topic="t", partitions=[part])]),
        version,
    )


# -- records ---------------------------------------------------------------------------------------


def _batch(magic: int, codec: int) -> bytes:
    builder = MemoryRecordsBuilder(magic=magic, compression_type=codec, batch_size=1 << 16)
    for number in range(3):
        headers = [("h", b"v")] if magic == 2 else []
        builder.append(1_500_000_000_000, b"k%d" % number, b"v" * 20, headers)
    builder.close()
    return bytes(builder.buffer())


def _sealed(data: bytes) -> bytes:
    """Correct all checksums, so that mutations reach the code behind the check."""
    out = bytearray(data)
    pos = 0
    while pos + 17 <= len(out):
        (size,) = struct.unpack_from(">i", out, pos + 8)
        stop = pos + 12 + size
        is_batch = out[pos + 16] == 2
        if not pos + (61 if is_batch else 17) <= stop <= len(out):
            break
        if is_batch:
            struct.pack_into(">I", out, pos + 17, crc32c(bytes(out[pos + 21 : stop])))
        else:
            struct.pack_into(">I", out, pos + 12, zlib.crc32(bytes(out[pos + 16 : stop])))
        pos = stop
    return bytes(out)


def _records(data: bytes) -> object:
    found = scan(data)
    assert 0 <= found.valid_bytes <= len(data)
    count = sum(len(part) for part in PythonDecoder().decode(data, "t", 0, 0))
    assert found.valid_bytes or not found.damaged
    return count


def _without_aborted(data: bytes) -> object:
    return without_aborted(data, [(1, 0), (2, 4)])


def _transactions() -> bytes:
    """Two aborted transactions, their markers, and a third one."""
    batches = [make_batch(4 * at, 4 * at, [4 * at], 12, 0, 1 + at, 0x10).data for at in (0, 1)]
    marker = bytes(4)
    ends = [make_batch(9 + at, 9 + at, [9 + at], 6, 0, 1 + at, 0x30, marker).data for at in (0, 1)]
    return b"".join((*batches, *ends, make_batch(20, 20, [20], 12, 0, 1, 0x10).data))


def _codec(number: int, *, old_lz4: bool = False) -> Callable[[bytes], object]:
    return lambda data: codecs.decompress(number, data, old_lz4=old_lz4)


# -- ZooKeeper's files and answers -----------------------------------------------------------------


def _file(read: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    """Read the bytes as a file named ``name``."""
    memory = Path("/dev/shm")  # a thousand times faster than some disks
    place = memory if memory.is_dir() else None
    folder = tempfile.TemporaryDirectory(prefix="zkc-fuzz-", dir=place)

    def run(data: bytes) -> object:
        _keep = folder
        path = Path(folder.name) / name
        path.write_bytes(data)
        return read(path)

    return run


def _all(items: Iterator[Any]) -> int:
    return sum(1 for _ in items)


def _text(value: str) -> bytes:
    return struct.pack(">i", len(value)) + value.encode()


_CREATE: Final = (
    struct.pack(">qiqqi", 0x100, 1, 0x200, 1_500_000_000_000, 1)
    + _text("/consumers/g/ids/m")
    + struct.pack(">i", 2)
    + b"{}"
    + struct.pack(">ii", 1, 31)
    + _text("world")
    + _text("anyone")
    + struct.pack(">?i", True, 1)
)
_SET: Final = (
    struct.pack(">qiqqi", 0x100, 2, 0x201, 1_500_000_000_001, 5)
    + _text("/consumers/g/offsets/t/0")
    + struct.pack(">i", 2)
    + b"17"
    + struct.pack(">i", 3)
)
_DELETE: Final = struct.pack(">qiqqi", 0x100, 3, 0x202, 1_500_000_000_002, 2) + _text("/a")
_CLOSE: Final = struct.pack(">qiqqi", 0x100, 4, 0x203, 1_500_000_000_003, -11)
_MULTI: Final = struct.pack(">qiqqii", 0x100, 5, 0x204, 1_500_000_000_004, 14, 1) + (
    struct.pack(">ii", 2, 6) + _text("/b")
)


def _log_of(*payloads: bytes) -> bytes:
    records = [
        struct.pack(">qi", zlib.adler32(payload), len(payload)) + payload + b"B"
        for payload in payloads
    ]
    return FILE_HEADER + b"".join(records) + bytes(64)


def _resealed_log(data: bytes) -> bytes:
    """Correct the checksums of a log."""
    out = bytearray(data)
    pos = len(FILE_HEADER)
    while pos + 12 <= len(out):
        (size,) = struct.unpack_from(">i", out, pos + 8)
        if not 0 < size <= len(out) - pos - 13:
            break
        struct.pack_into(">q", out, pos, zlib.adler32(bytes(out[pos + 12 : pos + 12 + size])))
        out[pos + 12 + size] = 0x42
        pos += 13 + size
    return bytes(out)


_SNAPSHOT: Final = (
    b"ZKSN"
    + struct.pack(">iq", 2, -1)
    + struct.pack(">iqi", 1, 0x100, 6000)
    + struct.pack(">iqii", 1, 1, 1, 31)
    + _text("world")
    + _text("anyone")
    + b"".join(
        _text(path)
        + struct.pack(">i", len(data))
        + data
        + struct.pack(">qqqqqiiiqq", 1, 1, 1, 0, 0, 0, 0, 0, 0, 1)
        for path, data in (("", b""), ("/consumers", b"x"))
    )
    + _text("/")
)


def _snapshot(data: bytes) -> bytes:
    return data + struct.pack(">q", zlib.adler32(data)) + _text("/")


def _resealed_snapshot(data: bytes) -> bytes:
    """Correct the checksum of a snapshot."""
    end = len(data) - 13
    return data[:end] + struct.pack(">q", zlib.adler32(data[:end])) + data[end + 8 :]


def _multi_answer() -> bytes:
    stat = struct.pack(">qqqqiiiqiiq", 1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 1)
    data = struct.pack(">iBi", 4, 0, 0) + struct.pack(">i", 1) + b"x" + stat
    names = struct.pack(">iBi", 8, 0, 0) + struct.pack(">i", 2) + _text("a") + _text("b")
    return data + names + struct.pack(">iBii", -1, 0, -101, -101) + struct.pack(">iBi", -1, 1, -1)


def _transaction_answer() -> bytes:
    stat = struct.pack(">qqqqiiiqiiq", 1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 1)
    created = struct.pack(">iBi", 1, 0, 0) + _text("/a")
    changed = struct.pack(">iBi", 5, 0, 0) + stat
    return (
        created + changed + struct.pack(">iBii", -1, 0, -101, -101) + struct.pack(">iBi", -1, 1, -1)
    )


# -- files -----------------------------------------------------------------------------------------


def _journal() -> bytes:
    return json.dumps(run_entry(1, "boottime", {"group.id": "g"})).encode() + b"\n"


def _member_journal() -> bytes:
    """A member's start: the machine, two events and their commands."""
    entries: list[Any] = [run_entry(1, "boottime", {"group.id": "g"})]
    spec = MemberSpec(znodes.GroupPaths("g"), "g_m", Subscription(Pattern.STATIC, {"t": 1}))
    machine = RebalanceMachine(spec)
    sink = mock.Mock(write=entries.append)
    recorder = Recorder(sink, "g_m", lambda: 2)
    recorder.made(machine, "zookeeper")
    for event in (zk_events.SessionOpened(7), zk_events.Changed(znodes.BROKER_IDS)):
        recorder.event(event, 2, 0)
        for command in machine.on(event):
            recorder.command(command, 2, 0)
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)


def _deserialized(data: bytes) -> None:
    """Deserialize as ``consume`` does. A wrong length is an error of ``struct``."""
    for name in _DESERIALIZERS:
        run = _deserializer("--value-deserializer", name)
        assert run is not None
        with contextlib.suppress(struct.error):
            run(data)


def _offsets_record(data: bytes) -> object:
    size = data[0] if data else 0
    return decode_offsets_record(data[1 : 1 + size], data[1 + size :] or None)


def _copied(data: bytes) -> None:
    """What MirrorMaker 2 records of copies, in both forms."""
    size = data[0] if data else 0
    for decode in (mirror_maker.decode_sync, mirror_maker.decode_checkpoint):
        with contextlib.suppress(ValueError):
            decode(data[1 : 1 + size], data[1 + size :])


def _copied_seeds() -> tuple[bytes, ...]:
    place, pair = b"\0\1t" + struct.pack(">i", 0), struct.pack(">qq", 7, 9)
    return b"\7" + place + pair, b"\x0a\0\1g" + place + b"\0\0" + pair + b"\0\0"


def _offsets_seeds() -> tuple[bytes, ...]:
    key = struct.pack(">h", 1) + b"\0\1g\0\1t" + struct.pack(">i", 0)
    value = struct.pack(">hqi", 3, 7, -1) + b"\0\0" + struct.pack(">q", 1_500_000_000_000)
    group = struct.pack(">h", 2) + b"\0\1g"
    state = struct.pack(">h", 3) + b"\0\x08consumer" + struct.pack(">i", 1) + b"\0\5range\0\1m"
    state += struct.pack(">qi", 5, 0)
    members = [struct.pack(">h", part) + b"\0\1g\0\1m" for part in (5, 7, 8)]
    epochs = [struct.pack(">h", part) + b"\0\1g" for part in (3, 6)]
    places = b"\2" + bytes(16) + b"\2" + struct.pack(">i", 1) + b"\1\0\5\2\0\0\0\3"
    parts = (
        b"\0\0\0\0\2c\2h\2\2t\0\0\0\0\1\0\1\0\1\0",
        b"\0\0" + places + b"\0",
        b"\0\0" + struct.pack(">iib", 3, 2, 1) + places + places + b"\0",
    )
    every = [(key, value), (key, None), (group, state), *zip(members, parts, strict=True)]
    every += [(one, b"\0\0\0\0\0\3\0") for one in epochs]
    return tuple(bytes((len(k),)) + k + (v or b"") for k, v in every)


_SUBSCRIPTION: Final = wire.encode_subscription(wire.SubscriptionData(("a", "b"), b"xyz"))
_ASSIGNMENT: Final = wire.encode_assignment(wire.AssignmentData(frozenset({_TP}), b""))
_PLAN: Final = b"".join(
    json.dumps(line).encode() + b"\n"
    for line in (
        {"zkmigrate": plan_file.FORMAT, "direction": "zk-to-kafka", "made_ms": 1},
        {
            "group": "g",
            "verdict": "ready",
            "partitions": 1,
            "writes": 1,
            "problems": [],
            "notes": ["n"],
            "marker": None,
            "topics": {"t": 5},
            "skipped": [],
            "stays_behind": [{"topic": "x", "partition": 0, "offset": 3, "why": "w"}],
        },
        {
            "topic": "t",
            "partition": 0,
            "zookeeper": 17,
            "zk_version": 3,
            "kafka": 5,
            "to": 17,
            "write": True,
            "reason": "r",
            "leader_epoch": 1,
        },
        {"groups": 1, "partitions": 1},
    )
)


def _checked_lines(data: bytes) -> object:
    """Parse a migration journal whose lines have correct checksums."""
    lines = [line.rpartition(b"\t")[0] or line for line in data.split(b"\n")[:-1]]
    sealed = b"".join(b"%b\t%08x\n" % (line, zlib.crc32(line)) for line in lines)
    return migration_journal.parse("j", sealed)


def _leading(strategy: strategies.Strategy) -> Target:
    """The leader of a group of three assigns. The bytes of one member come from another client."""
    state = strategies.MemberState("c", {"a": 2, "b": 1}, frozenset({_TP}), 3, (frozenset(), -1))
    seeds = [
        strategy.subscribe(state),
        strategy.subscribe(replace(state, before=(frozenset({_TP}), 3))),
    ]
    own = seeds[0]
    seeds += [seed.replace(b'"c"', b'"\\ud800"') for seed in seeds if b'"c"' in seed]

    def run(metadata: bytes) -> object:
        members = [GroupMember(name, None, own) for name in ("m1", "m2")]
        members.append(GroupMember("m3", None, metadata))
        given = strategy.assign(members, {"a": 4, "b": 2, "t": 3})
        shares = {name: wire.decode_assignment(data) for name, data in given.items()}
        assert shares.keys() == {"m1", "m2", "m3"}
        wanted = {"a": 4, "b": 2}
        streams = [strategies.assign_to_streams("c", wanted, one, {}) for one in shares.values()]
        assert {tp for one in streams for tp in one} >= {TopicPartition("b", 0)}
        return streams

    return _any_answer(run, *tuple(seeds))


def _streams(data: bytes) -> object:
    given = wire.decode_assignment(data)
    return strategies.assign_to_streams("c", {"t": 2}, given, {})


def _sealed_plan(data: bytes) -> object:
    """Parse a plan with a correct checksum, if its last line has room for one."""
    lines, newline, last = data.removesuffix(b"\n").rpartition(b"\n")
    try:
        totals = json.loads(last)
    except (ValueError, RecursionError):
        totals = None
    if isinstance(totals, dict) and data.endswith(b"\n"):
        totals["sha256"] = hashlib.sha256(lines + newline).hexdigest()
        data = lines + newline + json.dumps(totals).encode() + b"\n"
    return _all(iter(plan_file.parse("p", data).groups))


TARGETS: Final[dict[str, Target]] = {
    # znodes
    "registration": _znode(_subscribed, _REGISTRATION, _FILTER),
    "offset-znode": _znode(_stored_offset, b"17", b"-1"),
    "broker-znode": _znode(_broker, _BROKER),
    "topic-znode": _znode(_topic, b'{"version":1,"partitions":{"0":[1],"1":[2,1]}}'),
    "thread-id": _short(
        lambda data: ConsumerThreadId.parse(data.decode(errors="replace")),
        b"g_host-1500000000000-abcd1234-0",
    ),
    "registration-writer": _any_znode(znodes.registration_writer, _REGISTRATION, _FILTER, b"{}"),
    "replicas": _znode(
        lambda data: topics._decode_replicas("/z", _node(data)),
        b'{"version":1,"partitions":{"0":[1],"1":[2,1]}}',
    ),
    "partition-state": _znode(
        lambda data: topics._decode_state("/z", _node(data)),
        b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1,2]}',
    ),
    "migration-record": _znode(
        lambda data: record.decode("/z", _node(data)),
        record.encode(Record(id="x", by="a@b", stage=Stage.DONE, moved_to="kafka")),
        record.encode(Record(late=(TopicPartition("t", 0),))),
    ),
    "mirror-state": _znode(
        lambda data: mirror_state.decode("/z", _node(data)),
        mirror_state.encode(Mirror(Store.KAFKA, 7, {TopicPartition("t", 0): 9}, {"t": 3})),
    ),
    "migration-before": _znode(
        lambda data: record.decode_before("/z", data),
        record.encode_before(
            Before(
                Store.KAFKA,
                "",
                None,
                True,
                frozenset({"t"}),
                {_TP: KafkaOffset(17)},
                {_TP: KafkaOffset(3, 1, "m")},
                {_TP: None},
            )
        ),
    ),
    "migration-marker": _znode(
        lambda data: migration_marker.decode("/z", _node(data)),
        migration_marker.encode(Store.KAFKA, 1, {_TP: 17}),
        b"",
    ),
    "gate-sweep": _any_znode(
        lambda data: looks_like_offsets("/app/job", data, {"pages"}),
        b'{"pages":{"0":17}}',
        b'[{"topic":"pages","at":"17"}]',
        b"pages:0:17,pages:1:4",
        b"17",
    ),
    "live-mode": _znode(
        lambda data: live_znodes.decode_mode("/z", data),
        live_znodes.encode_mode(Mode.LOCKED),
        live_znodes.encode_mode(Mode.KAFKA),
    ),
    "live-member": _znode(
        lambda data: live_znodes.decode_member("/z", data),
        live_znodes.encode_member(None),
        live_znodes.encode_member(7),
    ),
    "filter": _znode(_regex, b"a.*", b"(?i)x{2}[a-f&&[^b]]", b"(a+)+$", b"(x)\\1"),
    # answers of ZooKeeper
    "multi-read": Target(
        lambda data: MultiRead.deserialize(data, 0),
        (ValueError, struct.error),
        ANSWER_S,
        (_multi_answer(),),
    ),
    "multi-write": Target(
        lambda data: MultiWrite.deserialize(data, 0),
        (ValueError, struct.error),
        ANSWER_S,
        (_transaction_answer(),),
    ),
    # answers of brokers
    "api-versions": _answer(_open, _versions(3)),
    "sasl-handshake": _answer(
        _asked(lambda to: (to.open(), sasl.enabled_mechanisms(to)), 1),
        b"\0\x21\0\0\0\2\0\5PLAIN\0\7SCRAM-X",
    ),
    "sasl-answer": _answer(
        lambda data: sasl.authenticated(_BROKER_1, data, 1),
        b"\0\0\xff\xff\0\0\0\3abc" + bytes(8),
        b"\0\x3a\0\2no\0\0\0\0" + bytes(8),
    ),
    **{
        f"fetch-{version}": _answer(
            _asked(partial(_fetch, version >= 4), version),
            _fetched(version, b"abc"),
            _fetched(version, b""),
        )
        for version in (0, 2, 4, 10)
    },
    "metadata": _answer(
        _asked(lambda connection: fetch_metadata(connection, {"t"}), 4), _metadata(4)
    ),
    **{
        f"cluster-{version}": _answer(_asked(read_cluster, version), _metadata(version))
        for version in (0, 4)
    },
    "cluster-10": _answer(_asked(read_cluster, 10), b"\0" + _metadata(10)),
    "list-offsets": _answer(
        _asked(lambda connection: list_offsets(connection, [_TP], EARLIEST), 1), _listed()
    ),
    "offset-fetch": _answer(
        _asked(lambda connection: fetch_offsets(connection, "g", [_TP]), 5), _fetched_offsets(5)
    ),
    "member-find": _any_answer(
        _commanded(commands.FindCoordinator(1), 7),
        _encoded(FindCoordinatorResponse(error_code=0, node_id=1, host="127.0.0.1", port=9092), 0),
    ),
    "member-topics": _any_answer(_commanded(commands.LoadTopics(1, None), 4), _metadata(4)),
    "member-join": _any_answer(
        _commanded(commands.JoinGroup(1, "m", (("range", b""),)), 5), _joined(5)
    ),
    "member-sync": _any_answer(
        _commanded(commands.SyncGroup(1, "m", 1, {}), 3),
        _encoded(SyncGroupResponse(error_code=0, assignment=_ASSIGNMENT), 3),
    ),
    "member-offsets": _any_answer(
        _commanded(commands.FetchOffsets(1, frozenset({_TP})), 5), _fetched_offsets(5)
    ),
    "member-commit": _any_answer(
        _commanded(commands.CommitOffsets(1, "m", 1, {_TP: 1}), 7), _committed(7)
    ),
    # answers to tools
    "admin-list": _answer(_administered(lambda asked: asked.list_groups(), 3), _listed_groups()),
    "admin-members": _answer(
        _administered(lambda asked: asked.members("g"), 3), _described_group()
    ),
    "admin-retention": _answer(
        _administered(lambda asked: asked.retention_minutes(), 3), _described_broker()
    ),
    "admin-delete": _answer(_administered(lambda asked: asked.delete("g", [_TP]), 3), _deleted()),
    "commit-times": _any_answer(
        lambda data: (
            offset_times._commit(data[1 : 1 + data[0]], data[1 + data[0] :] or None)
            if data
            else None
        ),
        *_offsets_seeds(),
    ),
    # what other members of a group write
    "subscription": _short(wire.decode_subscription, _SUBSCRIPTION),
    "assignment": _short(wire.decode_assignment, _ASSIGNMENT),
    "sticky": _short(wire.decode_sticky, wire.encode_sticky([_TP], 3)),
    **{
        f"assign-{strategy.name}": _leading(strategy)
        for strategy in (
            strategies.RangeStrategy(),
            strategies.RoundRobinStrategy(),
            strategies.LegacyStrategy("legacy-range"),
            strategies.LegacyStrategy("legacy-roundrobin"),
            StickyStrategy(cooperative=False),
            StickyStrategy(cooperative=True),
        )
    },
    "streams": _short(
        _streams,
        wire.encode_assignment(wire.AssignmentData(frozenset({_TP}), b'{"streams":[["t",0,1]]}')),
    ),
    # records
    "records": _messages(
        _records, *tuple(_batch(magic, codec) for magic in (0, 1, 2) for codec in (0, 1))
    ),
    "records-sealed": _messages(
        lambda data: _records(_sealed(data)),
        *(_batch(2, codec) for codec in (0, 1, 2, 3, 4)),
        *(_batch(1, codec) for codec in (0, 1, 2, 3)),
        *(_batch(0, codec) for codec in (0, 1, 2)),
    ),
    "aborted": _messages(
        lambda data: _without_aborted(_sealed(data)),
        _transactions(),
        _batch(2, 1) + _transactions(),
        _batch(1, 0) + _transactions(),
    ),
    "columns": _messages(
        lambda data: columns.decode(_sealed(data), "t", 0, 0),
        *tuple(_batch(magic, codec) for magic in (0, 1, 2) for codec in (0, 1)),
    ),
    "gzip": _compressed(_codec(1), gzip.compress(b"abc" * 50)),
    "snappy": _compressed(_codec(2), _batch(2, 2)[61:]),
    "lz4": _compressed(_codec(3), _batch(2, 3)[61:]),
    "lz4-old": _compressed(_codec(3, old_lz4=True), _batch(2, 3)[61:]),
    "zstd": _compressed(_codec(4), _batch(2, 4)[61:]),
    # ZooKeeper's logs and snapshots
    "transaction": Target(
        decode_payload, (BodyError,), ANSWER_S, (_CREATE, _SET, _DELETE, _CLOSE, _MULTI)
    ),
    "log": _logged(
        _file(lambda path: _all(read_log(path)), "log.1"),
        _log_of(_CREATE, _SET, _DELETE, _CLOSE, _MULTI),
    ),
    "log-sealed": _logged(
        (lambda run: lambda data: run(_resealed_log(data)))(
            _file(lambda path: _all(read_log(path)), "log.1")
        ),
        _log_of(_CREATE, _SET, _DELETE, _CLOSE, _MULTI),
    ),
    "snapshot": _logged(
        (lambda run: lambda data: run(_resealed_snapshot(data)))(
            _file(lambda path: _all(read_snapshot(path)), "snapshot.1")
        ),
        _snapshot(_SNAPSHOT),
    ),
    "snapshot-sessions": _logged(
        (lambda run: lambda data: run(_resealed_snapshot(data)))(
            _file(lambda path: _all(read_snapshot_sessions(path)), "snapshot.1")
        ),
        _snapshot(_SNAPSHOT),
    ),
    "deserializers": _any_answer(_deserialized, bytes(8), "\u00e5".encode()),
    "offsets-record": _any_answer(_offsets_record, *_offsets_seeds()),
    # files
    "journal": Target(
        _file(lambda path: _all(read_journal(path)), "j"),
        (JournalFormatError,),
        ANSWER_S,
        (_journal(),),
    ),
    "journal-rows": _any_answer(_file(lambda path: _all(read_journal_rows(path)), "j"), _journal()),
    "replay": Target(
        _file(lambda path: replay("j", read_journal(path)), "j"),
        (JournalFormatError,),
        1.0,
        (_member_journal(),),
    ),
    "plan": Target(
        _sealed_plan,
        (PlanFileError,),
        ANSWER_S,
        (_PLAN,),
    ),
    "decisions": Target(
        lambda data: decisions_file.parse("d", data),
        (PlanFileError,),
        ANSWER_S,
        (b'[[rule]]\ngroup = "g*"\ntopic = "t"\non_conflict = "max"\n[[rule]]\nskip = true\n',),
    ),
    "group-lock-seen": _any_znode(is_lock_record, b'{"zkmigrate":1,"acl":[]}', b"null"),
    "audited-group": _any_znode(
        _audited_group,
        _REGISTRATION,
        _FILTER,
        b'{"moved_to":"kafka","version":1}',
        b"g_a-0",
        b"15",
        b"-3",
        b'{"version":1,"mode":"kafka"}',
        b'{"version":1,"acknowledged":1}',
    ),
    "group-lock": _any_znode(
        ids_lock.decode,
        b'{"zkmigrate":"moved","version":1,"at_ms":5,"acl":[[31,"world","anyone"]],"data":"x"}',
        b'{"zkmigrate":"moved","version":1,"at_ms":Infinity,"acl":[],"data":""}',
    ),
    "mirror-maker": Target(_copied, (), ANSWER_S, _copied_seeds()),
    "moved-to": _any_znode(ids_lock.moved_to, b'{"moved_to":"kafka"}', b'{"moved_to":1}', b"[]"),
    "migration-journal": Target(
        _checked_lines,
        (JournalError,),
        ANSWER_S,
        (b'{"journal":%d,"n":0,"plan":"x"}\n{"n":1}\n' % migration_journal.FORMAT,),
    ),
    "offsets-file": Target(
        lambda data: offset_files.parse("f", data),
        (OffsetsFileError,),
        ANSWER_S,
        (b"/consumers/g/offsets/t/0:17\n",),
    ),
    "offsets-csv": Target(
        lambda data: offset_csv.parse("f", data),
        (OffsetsFileError,),
        ANSWER_S,
        (b"g,t,0,17\n", b'[{"group":"g","topic":"t","partition":0,"offset":17}]'),
    ),
    "properties": Target(
        _file(lambda path: read_properties(path), "p"),
        (ConfigError,),
        ANSWER_S,
        (b"a=b\\\n c\n# d\nkey\\u0041 : v\n",),
    ),
}

OWN: Final = "reads what it has written itself"
DECODERS: Final[dict[str, tuple[str, ...] | str]] = {
    "migrate/zkmigrate/apply/journal.py": ("migration-journal",),
    "migrate/zkmigrate/formats/decisions_file.py": ("decisions",),
    "migrate/zkmigrate/formats/offset_csv.py": ("offsets-csv",),
    "migrate/zkmigrate/formats/plan_file.py": ("plan",),
    "migrate/zkmigrate/formats/proofs_file.py": OWN,
    "migrate/zkmigrate/plan/layout.py": ("gate-sweep",),
    "migrate/zkmigrate/stores/migration_marker.py": ("migration-marker",),
    "migrate/zkmigrate/stores/mirror_maker.py": ("mirror-maker",),
    "migrate/zkmigrate/stores/mirror_state.py": ("mirror-state",),
    "migrate/zkmigrate/stores/record.py": ("migration-record", "migration-before"),
    "spark/zkaudit/decode/batches.py": ("log", "log-sealed"),
    "spark/zkaudit/decode/columns.py": ("log", "log-sealed"),
    "spark/zkaudit/decode/snapshot.py": ("snapshot", "snapshot-sessions"),
    "spark/zkaudit/decode/txnlog.py": ("transaction", "log"),
    "spark/zkaudit/demo.py": OWN,
    "spark/zkaudit/group/live_moves.py": ("group-lock-seen", "audited-group"),
    "spark/zkaudit/group/rules/resets.py": OWN,
    "spark/zkaudit/group/subscriptions.py": ("audited-group",),
    "spark/zkaudit/job/buckets.py": OWN,
    "spark/zkaudit/job/place.py": OWN,
    "spark/zkaudit/job/retention.py": OWN,
    "spark/zkaudit/job/stream.py": OWN,
    "spark/zkaudit/sources/files.py": "options of a job, from its user",
    "zkconsumer/admin/ids_lock.py": ("group-lock", "moved-to"),
    "zkconsumer/admin/reads.py": ("replicas", "partition-state"),
    "zkconsumer/broker/fetching/codecs.py": ("gzip", "snappy", "lz4", "lz4-old", "zstd"),
    "zkconsumer/broker/connection.py": ("api-versions", "metadata"),
    "zkconsumer/broker/fetching/fetch.py": ("fetch-0", "fetch-2", "fetch-4", "fetch-10"),
    "zkconsumer/broker/fetching/columns.py": ("columns",),
    "zkconsumer/broker/fetching/records.py": ("records", "records-sealed"),
    "zkconsumer/broker/fetching/transactions.py": ("aborted",),
    "zkconsumer/broker/sasl.py": ("sasl-handshake", "sasl-answer"),
    "zkconsumer/cli/consume/formatter.py": ("deserializers",),
    "zkconsumer/cli/laboratory/demo_verdict.py": OWN,
    "zkconsumer/core/common/scala_maps.py": "hashes text, decodes nothing",
    "zkconsumer/core/groups/formats/offset_records.py": ("commit-times", "offsets-record"),
    "zkconsumer/core/groups/assignors/sticky.py": (
        "sticky",
        "assign-sticky",
        "assign-cooperative-sticky",
    ),
    "zkconsumer/core/groups/assignors/strategies.py": ("assign-legacy-range", "streams"),
    "zkconsumer/core/groups/formats/consumer_protocol.py": ("subscription", "assignment"),
    "zkconsumer/core/migration/znodes.py": ("live-mode", "live-member"),
    "zkconsumer/core/zookeeper/znodes.py": (
        "registration",
        "registration-writer",
        "broker-znode",
        "topic-znode",
    ),
    "zkconsumer/journal/json_lines.py": ("journal", "replay"),
    "zkconsumer/runtime/delivery/messages.py": "a decoder for applications, which raises to them",
    "zkconsumer/zk/multi.py": ("multi-read", "multi-write"),
}
"""Every module that calls a decoder of bytes: its targets, or the reason why it needs none."""
