"""Paths and contents of the znodes of a legacy group, with strict writers, and readers like the
JVM's.

Every znode is untrusted input, because any client of ZooKeeper may write below ``/consumers``. For
any bytes, a reader quickly returns a checked value or raises ZnodeFormatError. Readers accept the
same input as Scala 1.1.1 (with its JSON parser Jackson), except for the size limits below. Pure
functions; any thread may call them. All paths are relative to the chroot.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple, NoReturn

from zkconsumer.config.security_keys import NO_SECURITY, ListenerChoice
from zkconsumer.core.common.types import BrokerEndpoint, Pattern, Subscription, TopicPartition
from zkconsumer.errors import ConfigError, ZnodeFormatError

BROKER_IDS: Final = "/brokers/ids"
BROKER_TOPICS: Final = "/brokers/topics"

MAX_ZNODE_BYTES: Final = 64 * 1024
"""Largest size of a registration or broker znode. Larger ones are refused without parsing."""
MAX_TOPIC_ZNODE_BYTES: Final = 1024 * 1024
"""Largest size of a topic znode, which is ZooKeeper's default limit for any znode."""
MAX_TOPICS: Final = 1_000
"""Maximum number of topics in one registration."""
MAX_STREAMS: Final = 1_000
"""Maximum number of streams for one topic in one registration."""
MAX_DEPTH: Final = 16
"""Largest accepted nesting of JSON."""

_LEGAL = re.compile(r"[A-Za-z0-9._-]{1,255}")  # 255: the limit of Kafka 0.8; later ones say 249
_MEMBER = re.compile(r"[!-.0-~]{1,512}")  # visible ASCII but '/'; the JVM checks nothing here
_ZK_REFUSES = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]|(?:^|/)\\.{0,2}(?:/|$)")
_OFFSET = re.compile(rb"-?[0-9]{1,19}")
_PARTITION = re.compile(r"[0-9]{1,10}")
_PROTOCOL = re.compile(r"[A-Z0-9_]{1,40}")
_ENDPOINT = re.compile(r"([^:/]*)://\[?([0-9A-Za-z%._:-]{1,255}?)\]?:([0-9]{1,5})")
_CLIENT: Final = "zkconsumer"
_OLD_PROTOCOLS: Final = {"PLAINTEXTSASL": "SASL_PLAINTEXT"}
"""Protocol names in the registrations of Hortonworks' brokers."""
_MORE_LISTENERS: Final = 4
"""Largest number of further listeners of a broker that are tried."""
_INT32: Final = 2**31 - 1
_INT64: Final = 2**63 - 1


def is_legal_topic(name: str) -> bool:
    """Return whether a topic can have this name: ``[A-Za-z0-9._-]{1,255}``, not ``.`` or ``..``."""
    return _LEGAL.fullmatch(name) is not None and name not in (".", "..")


def is_legal_group(name: str) -> bool:
    """Return whether ZooKeeper can store a group of this name, of up to 255 characters.

    The JVM's and this library's members accept only names that are valid for topics. Other clients
    and Kafka do not check names, so tools must be able to read, move or delete a group with any
    such name.
    """
    short = 0 < len(name) <= 255 and max(name) <= "\uffff"
    return short and "/" not in name and _ZK_REFUSES.search(name) is None


def child_number(name: str) -> int | None:
    """Return the broker or partition number in a child's name; ``None`` for other names.

    Those include names that only Python reads as numbers, such as ``01``.
    """
    if not (name.isascii() and name.isdigit()) or len(name) > 10:
        return None
    return int(name) if str(int(name)) == name and int(name) <= _INT32 else None


def broker_path(broker_id: int) -> str:
    """Return the path of a broker's registration."""
    return f"{BROKER_IDS}/{_number(BROKER_IDS, broker_id)}"


def topic_path(topic: str) -> str:
    """Return the path of a topic's partition list. Raises ZnodeFormatError for an illegal name."""
    return f"{BROKER_TOPICS}/{_topic(BROKER_TOPICS, topic)}"


class GroupPaths:
    """The paths of one group. Raises ConfigError if the group's name cannot be in a path.

    An invalid topic or member name raises ZnodeFormatError, which names its parent. Topics:
    ``[A-Za-z0-9._-]``, up to 255. Groups: see ``is_legal_group``. Members: visible ASCII without
    ``/``, up to 512, since the JVM does not check ``consumer.id``; they may begin with the group's
    name. Never ``.`` or ``..``.
    """

    __slots__ = ("group", "ids", "offsets", "owners", "root")

    def __init__(self, group: str) -> None:
        # DEVIATION-22: the JVM accepts an empty group.id and writes broken paths.
        if not is_legal_group(group):
            raise ConfigError(
                [
                    f"group.id={group!r} cannot be part of a ZooKeeper path: use 1 to 255 letters, "
                    "digits, '.', '_' or '-' (not '.' or '..')"
                ]
            )
        self.group = group
        self.root = f"/consumers/{group}"
        self.ids = f"{self.root}/ids"
        self.owners = f"{self.root}/owners"
        self.offsets = f"{self.root}/offsets"

    def member(self, consumer_id: str) -> str:
        """Return the path of a member's registration."""
        own = consumer_id.removeprefix(f"{self.group}_")
        if _MEMBER.fullmatch(own) is None or consumer_id in (".", ".."):
            raise ZnodeFormatError(
                self.ids,
                f"member name {_short(consumer_id)} must be 1 to 512 visible ASCII characters "
                "without '/'",
            )
        return f"{self.ids}/{consumer_id}"

    def owners_topic(self, topic: str) -> str:
        """Return the parent of a topic's owner znodes."""
        return f"{self.owners}/{_topic(self.owners, topic)}"

    def owner(self, tp: TopicPartition) -> str:
        """Return the path of a partition's owner znode."""
        parent = self.owners_topic(tp.topic)
        return f"{parent}/{_number(parent, tp.partition)}"

    def offsets_topic(self, topic: str) -> str:
        """Return the parent of a topic's offset znodes."""
        return f"{self.offsets}/{_topic(self.offsets, topic)}"

    def offset(self, tp: TopicPartition) -> str:
        """Return the path of a partition's committed offset."""
        parent = self.offsets_topic(tp.topic)
        return f"{parent}/{_number(parent, tp.partition)}"


def make_consumer_id(
    group: str, consumer_id: str | None, hostname: str, now_ms: int, uuid_int: int
) -> str:
    """Return a member's id as the JVM builds it (Scala ZookeeperConsumerConnector).

    ``<group>_<consumer.id>`` when that key is set, else ``<group>_<hostname>-<epoch ms>-<hex>``
    with up to 8 hex digits from the upper 64 bits of ``uuid_int`` (leading zeros dropped first).
    Raises ConfigError when the id cannot be part of a path.
    """
    tail = consumer_id
    if tail is None:
        tail = f"{hostname}-{now_ms}-{format(uuid_int >> 64, 'x')[:8]}"
    member = f"{group}_{tail}"
    if _MEMBER.fullmatch(member) is None:
        source = "host name" if consumer_id is None else "consumer.id"
        raise ConfigError(
            [
                f"consumer.id: the {source} gives the member name {_short(member)}, which cannot "
                "be part of a ZooKeeper path: set consumer.id to letters, digits, '.', '_' and '-'"
            ]
        )
    return member


def encode_registration(
    subscription: Subscription, timestamp_ms: int, *, ours: bool = False
) -> bytes:
    """Return the bytes of a registration; the timestamp is a string, which old readers need.

    ``ours``: record that the member uses this library (``is_ours``), which the JVM ignores.

    Quotes and backslashes in a regex are escaped once, as JSON requires (Kafka 1.0.1 to 1.1 escapes
    twice and so cannot match its own pattern). Raises ConfigError for a subscription that members
    could not read.
    """
    filtered = subscription.pattern is not Pattern.STATIC
    faults: list[str] = []
    if filtered and len(subscription.topics) != 1:
        faults.append("a topic filter subscribes with exactly one regex")
    if len(subscription.topics) > MAX_TOPICS:
        faults.append(f"{len(subscription.topics)} topics: at most {MAX_TOPICS} for one consumer")
    for name, streams in subscription.topics.items():
        if not filtered and not is_legal_topic(name):
            faults.append(
                f"topic {_short(name)}: a topic's name has 1 to 255 letters, digits, "
                "'.', '_' or '-'; use a Whitelist for patterns"
            )
        if filtered and _has_surrogate(name):
            faults.append(f"topic filter {_short(name)} is not valid Unicode")
        if type(streams) is not int or not 1 <= streams <= MAX_STREAMS:
            faults.append(f"topic {_short(name)}: {streams!r} streams: must be 1 to {MAX_STREAMS}")
    if faults:
        raise ConfigError(faults)
    # DEVIATION-16: Kafka 1.0.1 to 1.1 escapes a filter's backslashes twice.
    document: dict[str, object] = {
        "version": 1,
        "subscription": dict(subscription.topics),
        "pattern": subscription.pattern.value,
        "timestamp": str(timestamp_ms),
    }
    if ours:
        document["client"] = _CLIENT
    data = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    if len(data) > MAX_ZNODE_BYTES:
        raise ConfigError(
            [f"the subscription takes {len(data)} bytes, more than {MAX_ZNODE_BYTES}: shorten it"]
        )
    return data


def decode_registration(path: str, data: bytes) -> Subscription:
    """Return the subscription in a member's registration.

    Raises ZnodeFormatError where Scala 1.1.1 fails its rebalance (bad JSON, missing pattern or
    subscription, a count that is not an integer of at least 1, a topic that cannot be in a path)
    and if a limit of this module is exceeded. As in Scala, version and timestamp are ignored, an
    unknown pattern or an empty subscription counts as static, only the first of several regexes in
    a filter is used, text after the JSON value is ignored, and invalid JSON is parsed again with
    every backslash doubled.
    """
    document = _parse_object(path, data, MAX_ZNODE_BYTES, retry=True)
    topics, pattern = document.get("subscription"), document.get("pattern")
    if not isinstance(pattern, str):
        _refuse(path, "has no text field 'pattern'")
    if not isinstance(topics, dict):
        _refuse(path, "has no object field 'subscription'")
    if len(topics) > MAX_TOPICS:
        reason = f"subscribes to {len(topics)} topics, more than {MAX_TOPICS}"
        _refuse(path, reason, too_large=True)
    for name, streams in topics.items():
        if type(streams) is not int or abs(streams) > _INT32:
            _refuse(path, f"the number of streams for {_short(name)} is not an integer")
    filters = {Pattern.WHITE_LIST.value, Pattern.BLACK_LIST.value}
    if topics and pattern in filters:
        regex, streams = next(iter(topics.items()))
        if _has_surrogate(regex):
            _refuse(path, f"topic filter {_short(regex)} is not valid Unicode")
        return Subscription(Pattern(pattern), {regex: _streams(path, regex, streams)})
    for name, streams in topics.items():
        _streams(path, name, streams)
        if not name or _ZK_REFUSES.search(name):
            _refuse(path, f"subscribes to {_short(name)}, which cannot be part of a path")
    return Subscription(Pattern.STATIC, topics)


def other_regexes(path: str, data: bytes) -> list[str]:
    """Return the regexes of a topic filter after the first one; empty for other or unreadable
    registrations."""
    if b"_list" not in data:  # spares static ones the decoding
        return []
    try:
        if decode_registration(path, data).pattern is Pattern.STATIC:
            return []
        return list(_parse_object(path, data, MAX_ZNODE_BYTES, retry=True)["subscription"])[1:]
    except ZnodeFormatError:
        return []


def registration_writer(data: bytes) -> str | None:
    """Guess which other client wrote a registration that JVM members misread; ``None`` if
    unknown."""
    text = data.decode(errors="replace")
    if is_legal_topic(text):
        return "pykafka or samsa, as it is the bare name of a topic"
    if text.strip() == "{}":
        return "poseidon_cluster, as it is an empty object"
    if other_regexes("", data):
        return "kafka-node, as it is a filter with several topics"
    return None


def is_ours(data: bytes) -> bool:
    """Return whether a registration shows that its member uses this library."""
    try:
        return _parse_object("", data, MAX_ZNODE_BYTES).get("client") == _CLIENT
    except ZnodeFormatError:
        return False


def encode_offset(offset: int) -> bytes:
    """Return the bytes of a committed offset. Raises ValueError outside 0 to 2^63-1."""
    if not 0 <= offset <= _INT64:
        raise ValueError(f"{offset} is not a valid offset for a commit")
    return b"%d" % offset


def decode_offset(path: str, data: bytes) -> int:
    """Return a committed offset. Its text is an optional ``-`` and up to 19 digits, within 64 bits.

    Blanks, ``+``, ``_`` and digits of other scripts are refused. ``-1`` is accepted: a tool may
    have written it, and it means that there is no usable offset.
    """
    if _OFFSET.fullmatch(data) is None or not -_INT64 - 1 <= (offset := int(data)) <= _INT64:
        _refuse(path, f"{_short(data)} is not an offset: write a decimal number, nothing else")
    return offset


def decode_broker(
    path: str, broker_id: int, data: bytes, wanted: ListenerChoice = NO_SECURITY.listener
) -> BrokerEndpoint:
    """Return the address of a broker's listener (registrations of version 1 and later).

    Version 1 has host and port, and is PLAINTEXT. Later versions list endpoints, of which the
    first with the protocol is used (Scala Broker.createBroker). Other endpoints with this protocol
    may be internal or external listeners, so they are tried, too, unless a name selects one.

    Raises ZnodeFormatError, whose text lists the broker's listeners, if none is suitable.
    """
    document = _parse_object(path, data, MAX_ZNODE_BYTES)
    version = document.get("version")
    if type(version) is not int or version < 1:
        _refuse(path, "has no version of 1 or more")
    endpoints = document.get("endpoints")
    if version == 1:
        host, port = document.get("host"), document.get("port")
        if not isinstance(host, str) or type(port) is not int:
            _refuse(path, "has no host and port")
        endpoints = [f"PLAINTEXT://{host}:{port}"]
    protocols = document.get("listener_security_protocol_map", {})
    if not isinstance(endpoints, list) or not isinstance(protocols, dict):
        _refuse(path, "has no list of endpoints, or its listener map is not an object")
    listeners: list[Listener] = []
    for endpoint in endpoints:
        parts = _ENDPOINT.fullmatch(endpoint) if isinstance(endpoint, str) else None
        if parts is None or not 1 <= int(parts[3]) <= 65535:
            continue
        name = parts[1].upper()
        protocol = protocols.get(name, name)
        if isinstance(protocol, str) and _PROTOCOL.fullmatch(protocol.upper()):
            known = _OLD_PROTOCOLS.get(protocol.upper(), protocol.upper())
            listeners.append(Listener(name, known, parts[2], int(parts[3])))
    named = [one for one in listeners if wanted.name is None or one.name == wanted.name.upper()]
    usable = [(one.host, one.port) for one in named if one.protocol == wanted.protocol]
    if usable:
        first, *others = usable[: 1 + _MORE_LISTENERS]
        return BrokerEndpoint(broker_id, *first, tuple(others))
    from zkconsumer.core.zookeeper.listener_faults import why_unusable

    raise ZnodeFormatError(path, why_unusable(broker_id, listeners, named, wanted))


class Listener(NamedTuple):
    """A broker's listener. The name is in upper case, as in Kafka."""

    name: str
    protocol: str
    host: str
    port: int


def decode_topic(path: str, data: bytes) -> tuple[int, ...]:
    """Return a topic's partition numbers in ascending order; none if ``partitions`` is missing.

    Scala 1.1.1 treats invalid JSON as a topic without partitions. This function raises
    ZnodeFormatError, so that the caller can report it, and then treat the topic in the same way.
    """
    partitions = _parse_object(path, data, MAX_TOPIC_ZNODE_BYTES).get("partitions", {})
    if not isinstance(partitions, dict):
        _refuse(path, "field 'partitions' is not an object")
    for name in partitions:
        if _PARTITION.fullmatch(name) is None or int(name) > _INT32:
            _refuse(path, f"{_short(name)} is not a partition number")
    return tuple(sorted({int(name) for name in partitions}))


def _parse_object(path: str, data: bytes, limit: int, *, retry: bool = False) -> dict[str, Any]:
    if len(data) > limit:
        _refuse(path, f"holds {len(data)} bytes, more than {limit}", too_large=True)
    text = data.decode("utf-8", "replace")
    try:
        try:
            document = _parse_json(text)
        except ValueError:
            if not retry or "\\" not in text:
                raise
            document = _parse_json(text.replace("\\", "\\\\"))
    except (ValueError, RecursionError):
        _refuse(path, f"is not JSON: {_short(data)}")
    if not isinstance(document, dict):
        _refuse(path, "is not a JSON object")
    if _is_too_deep(document):
        _refuse(path, f"is nested deeper than {MAX_DEPTH} levels", too_large=True)
    return document


def _parse_json(text: str) -> object:
    """Parse the first JSON value of a text, as Jackson does. Text after the value is ignored."""
    value: object = _JSON.raw_decode(text.lstrip(" \t\r\n"))[0]
    return value


def _parse_int(digits: str) -> int:
    return int(digits[:20])  # 20 characters are beyond every range read here, as are more


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


_JSON = json.JSONDecoder(parse_int=_parse_int, parse_constant=_no_constant)


def _is_too_deep(document: object) -> bool:
    """Whether containers are nested deeper than ``MAX_DEPTH``, without recursion."""
    level = [document]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for value in level
            for child in (value.values() if isinstance(value, dict) else value)  # type: ignore[attr-defined]
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _streams(path: str, name: str, streams: int) -> int:
    if not 1 <= streams <= MAX_STREAMS:
        reason = f"{streams} streams for {_short(name)}: must be 1 to {MAX_STREAMS}"
        _refuse(path, reason, too_large=streams > MAX_STREAMS)
    return streams


def _topic(parent: str, topic: str) -> str:
    if not is_legal_topic(topic):
        _refuse(parent, f"{_short(topic)} is not a topic's name: [A-Za-z0-9._-]{{1,255}}")
    return topic


def _number(parent: str, number: int) -> int:
    if not 0 <= number <= _INT32:
        _refuse(parent, f"{number} is not a broker's or partition's number")
    return number


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _short(value: str | bytes) -> str:
    """Quote untrusted text for a message: ASCII, control characters escaped, limited length."""
    quoted = ascii(value[:60])
    return quoted if len(value) <= 60 else f"{quoted}... ({len(value)} long)"


def _refuse(path: str, reason: str, *, too_large: bool = False) -> NoReturn:
    raise ZnodeFormatError(path, reason, too_large)
