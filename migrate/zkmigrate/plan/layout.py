"""Layouts in which other clients store offsets in ZooKeeper, each with a reader. Pure.

Also finds a group's znodes that no JVM consumer creates. A reader gets the znodes below a path
and yields an offset for each partition. For data that its client does not write, it raises
ZnodeFormatError, which names the znode.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from zkconsumer.admin.reads import json_object
from zkconsumer.admin.snapshot import CHILDREN, CONSUMERS
from zkconsumer.core.common.foreign_layout import BROKER_PARTITION
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Node
from zkconsumer.core.zookeeper.znodes import decode_offset, is_legal_topic
from zkconsumer.errors import ZnodeFormatError
from zkmigrate.model import GroupState, ZkOffset
from zkmigrate.reasons import Reason

Nodes = Mapping[str, Node]
_MOST: Final = 2**63 - 2
_MOST_PARTITION: Final = 2**31 - 1


class Means(Enum):
    """What a stored number means. The reference page shows the value."""

    NEXT = "next record to read"
    LAST = "last record read"
    BATCH = "start of the last batch, which is read again"


class Stored(NamedTuple):
    """A partition's offset in another client's znode. ``offset``: ``None`` if nothing was
    committed."""

    path: str
    tp: TopicPartition
    offset: int | None


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout in which a client stores offsets.

    Args:
        client: its name and releases.
        where: the paths of the znodes, as text.
        pattern: matches the whole path of a znode with an offset. Its group ``root`` is the path to
            give to ``--layout``.
        means: what the stored numbers mean.
        never: how a partition without a commit looks, as text for the reference page.
        read: yields the offsets in ``Nodes``. Its text argument is the topic, if the znodes do not
            name it.
        others: matches the ends of the paths of znodes that contain no offsets.
    """

    client: str
    where: str
    pattern: re.Pattern[str]
    means: Means
    never: str
    read: Callable[[Layout, Nodes, str], Iterator[Stored]]
    others: re.Pattern[str] | None = None

    def matched(self, nodes: Nodes) -> Iterator[tuple[str, re.Match[str], Node]]:
        """Yield the znodes with offsets, and the match of each path."""
        for path, node in nodes.items():
            if match := self.pattern.fullmatch(path):
                yield path, match, node


def _storm(layout: Layout, nodes: Nodes, _topic: str) -> Iterator[Stored]:
    for path, match, node in layout.matched(nodes):
        document = json_object(path, node.data)
        offset = _integer(path, document, "offset")
        yield Stored(path, _named(path, document, match), offset if offset > 0 else None)


def _trident(layout: Layout, nodes: Nodes, _topic: str) -> Iterator[Stored]:
    """Yield Trident's offsets. A transaction is committed once the coordinator has begun the next
    one."""
    found: dict[str, list[tuple[int, str, re.Match[str], Node]]] = {}
    for path, match, node in layout.matched(nodes):
        parent = path.rpartition("/")[0]
        found.setdefault(parent, []).append((_digits(path, match["txn"]), path, match, node))
    for some in found.values():
        current = f"{some[0][2]['root']}/coordinator/currtx"
        if current not in nodes:
            raise ZnodeFormatError(current, "is missing: it shows which transactions are committed")
        begun = decode_offset(current, nodes[current].data)
        some.sort(key=lambda one: one[0])
        done = [one for one in some if one[0] < begun]
        _, path, match, node = done[-1] if done else some[0]
        document = json_object(path, node.data)
        offset = _integer(path, document, "nextOffset" if done else "offset")
        yield Stored(path, _named(path, document, match), offset)


def _spark_list(layout: Layout, nodes: Nodes, topic: str) -> Iterator[Stored]:
    for path, _, node in layout.matched(nodes):
        if not node.data:
            continue
        for part in _text(path, node.data).split(","):
            number, colon, offset = part.partition(":")
            if not colon:
                raise ZnodeFormatError(path, "is not a list of PARTITION:OFFSET")
            tp = _partition(path, topic, number)
            yield Stored(path, tp, decode_offset(path, offset.encode()))


def _brooklin(layout: Layout, nodes: Nodes, topic: str) -> Iterator[Stored]:
    for path, _, node in layout.matched(nodes):
        for checkpoint in json_object(path, node.data).values() if node.data else ():
            text = checkpoint if isinstance(checkpoint, str) else ""
            if text.count("/") == 2:  # BrooklinMirrorMaker
                name, number, offset = text.split("/")
            elif text.count("-") == 1:
                name, (number, offset) = topic, text.split("-")
            else:
                raise ZnodeFormatError(path, "has a checkpoint that is not from a Kafka connector")
            yield Stored(path, _partition(path, name, number), decode_offset(path, offset.encode()))


def _decimal(layout: Layout, nodes: Nodes, _topic: str) -> Iterator[Stored]:
    for path, match, node in layout.matched(nodes):
        if re.fullmatch(BROKER_PARTITION, match["partition"]):
            raise ZnodeFormatError(
                path,
                "is named by broker and partition, as in Kafka 0.7: its value is a position in a "
                "file, which no later broker understands",
            )
        tp = _partition(path, match["topic"], match["partition"])
        yield Stored(path, tp, decode_offset(path, node.data))


def _ureplicator(layout: Layout, nodes: Nodes, topic: str) -> Iterator[Stored]:
    """Yield uReplicator's offsets. Its controller creates znodes with 0, and its worker empty
    ones."""
    begun = {path: one for path, one in nodes.items() if one.data and not _is_first(one, b"0")}
    yield from _decimal(layout, begun, topic)


def _secor(layout: Layout, nodes: Nodes, topic: str) -> Iterator[Stored]:
    """Yield Secor's offsets. It creates a znode with Curator's default data, its own address, and
    then sets the number."""
    address = re.compile(rb"[0-9.]*\.[0-9.]+|[0-9a-f:%.]*:[0-9a-z:%.]*")
    begun = {
        path: one
        for path, one in nodes.items()
        if not (one.stat.version == 0 and address.fullmatch(one.data))
    }
    yield from _decimal(layout, begun, topic)


def _is_first(node: Node, data: bytes) -> bool:
    return node.stat.version == 0 and node.data == data


def _text(path: str, data: bytes) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise ZnodeFormatError(path, "is not text") from None


def _digits(path: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", text, re.ASCII):
        raise ZnodeFormatError(path, f"{text[:40]!a} is not a number")
    return int(text)


def _partition(path: str, topic: object, number: str) -> TopicPartition:
    if topic == "":
        raise ZnodeFormatError(path, "does not name the topic: add :TOPIC to --layout")
    if not isinstance(topic, str) or not is_legal_topic(topic):
        raise ZnodeFormatError(path, f"{str(topic)[:40]!a} is not a valid topic name")
    partition = _digits(path, number)
    if partition > _MOST_PARTITION:
        raise ZnodeFormatError(path, f"{partition} is too large for a partition number")
    return TopicPartition(topic, partition)


def _integer(path: str, document: Mapping[str, Any], key: str) -> int:
    value = document.get(key)
    if type(value) is not int or not -1 <= value <= _MOST:
        raise ZnodeFormatError(path, f"has no valid {key}: it must be an integer of -1 or more")
    return value


def _named(path: str, document: Mapping[str, Any], match: re.Match[str]) -> TopicPartition:
    """Return the partition in a document of Storm, which its path must confirm."""
    tp = _partition(path, document.get("topic"), str(document.get("partition")))
    if tp.partition != _digits(path, match["partition"]):
        raise ZnodeFormatError(path, f"has the offset of another partition, {tp}")
    return tp


_OFFSETS: Final = r"/(?P<topic>[^/]+)/(?P<partition>[^/]+)"

LAYOUTS: Final[Mapping[str, Layout]] = {
    "storm": Layout(
        "`KafkaSpout` of storm-kafka, until 1.2",
        "`ZKROOT/ID/partition_N`, with `topic_wildcard` `ZKROOT/ID/TOPIC/partition_N`: JSON",
        re.compile(r"(?P<root>/.+)/partition_(?P<partition>[0-9]+)"),
        Means.NEXT,
        "no znode. The spout treats 0 in the same way: it starts by its `startOffsetTime`",
        _storm,
    ),
    "trident": Layout(
        "`TridentKafkaSpout` of storm-kafka, until 1.2",
        "`ROOT/TXID/user/partition_N/TRANSACTION`: JSON, `nextOffset` of the last committed "
        "transaction; if none is, `offset` of the first",
        re.compile(
            r"(?P<root>/.+?)/user(?:/[^/]+)?/partition_(?P<partition>[0-9]+)/(?P<txn>[0-9]+)"
        ),
        Means.NEXT,
        "no transaction below `partition_N`",
        _trident,
        re.compile(r"/coordinator/(?:currtx|currattempts|meta)(?:/[^/]+)*"),
    ),
    "spark-list": Layout(
        "`ZooKeeperOffsetsStore` of spark-kafka-source, and its copies",
        "one znode of any name: `PARTITION:OFFSET,PARTITION:OFFSET`. `--layout` names the topic",
        re.compile(r"(?P<root>/.+)"),
        Means.BATCH,
        "no znode, or an empty one (0 is a valid offset)",
        _spark_list,
    ),
    "brooklin": Layout(
        "the Kafka connectors of Brooklin",
        "`CLUSTER/connectors/TYPE/TASK/state/sourceCheckpoint`: JSON, `TOPIC/PARTITION/OFFSET`, or "
        "`PARTITION-OFFSET`, whose topic `--layout` names. A task has one entry for each number of "
        "a partition, for any topic",
        re.compile(r"(?P<root>/.+)/connectors/[^/]+/[^/]+/state/sourceCheckpoint"),
        Means.LAST,
        "no entry (0 is a valid offset)",
        _brooklin,
        re.compile(r"/config|/state/(?!sourceCheckpoint)[^/]+|/lock(?:/[^/]+)*"),
    ),
    "ureplicator": Layout(
        "uReplicator",
        "`/consumers/GROUP/offsets/TOPIC/PARTITION`, perhaps in a ZooKeeper of its own: a number",
        re.compile(rf"(?P<root>(?:/.+)?/consumers/ureplicator-[^/]+)/offsets{_OFFSETS}"),
        Means.NEXT,
        "an empty znode, or 0 that was never set",
        _ureplicator,
    ),
    "secor": Layout(
        "Secor",
        "`KAFKA_ZOOKEEPER_PATH/consumers/GROUP/offsets/TOPIC/PARTITION`: a number",
        re.compile(rf"(?P<root>(?:/.+)?/consumers/[^/]+)/offsets{_OFFSETS}"),
        Means.NEXT,
        "no znode, -1, or the address of a Secor that ended before it set the number",
        _secor,
        re.compile(r"/lastSeen(?:/[^/]+)*"),
    ),
    "offset": Layout(
        "brokers of 1.1.0, which get commits of old clients",
        "`/consumers/GROUP/offset/TOPIC/PARTITION`: a number",
        re.compile(rf"(?P<root>(?:/.+)?/consumers/[^/]+)/offset{_OFFSETS}"),
        Means.NEXT,
        "no znode, or -1 (0 is a valid offset)",
        _decimal,
    ),
    "kafka": Layout(
        "JVM consumers, here those of another chroot",
        "`/consumers/GROUP/offsets/TOPIC/PARTITION`: a number. Those of Kafka 0.7, named "
        "`BROKER-PARTITION`, are refused",
        re.compile(rf"(?P<root>(?:/.+)?/consumers/[^/]+)/offsets{_OFFSETS}"),
        Means.NEXT,
        "no znode, or -1 (0 is a valid offset)",
        _decimal,
    ),
}
"""Each layout by its name."""

_SWEPT: Final = ("trident", "storm", "brooklin", "ureplicator", "kafka", "offset")
"""Layouts that are recognizable by their paths, the most specific first."""
_LIST: Final = re.compile(rb"[0-9]+:[0-9]+(?:,[0-9]+:[0-9]+)*")
_PAIR: Final = rb"(?:(?!\d{4}-\d\d-\d\dT)[\w.-]+\s*[:=]\s*)?[0-9]+\s*[:=]\s*[0-9]+"
"""A partition and its offset, possibly with a topic; not a point in time."""
_PAIRS: Final = re.compile(rb"\s*" + _PAIR + rb"(?:[\s,;]+" + _PAIR + rb")*[\s,;]*")
_JAVA_STRING: Final = re.compile(rb"\A\xac\xed\x00\x05t..", re.DOTALL)
_NUMBER: Final = re.compile(
    rb"""
    \s*(?:"\s*)?-?[0-9]{1,20}\s*(?:"\s*)?
    | \x00.{7}                                                # eight bytes, big-endian, below 2**56
    | \xac\xed\x00\x05sr\x00.java\.lang\.(?:Long|Integer).*   # serialized by Java
    """,
    re.DOTALL | re.VERBOSE,
)
_WHOLE: Final = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_PARTITION: Final = re.compile(rf"(?:.*[^0-9])?[0-9]+|{BROKER_PARTITION}")
_BELOW_PARTITION: Final = re.compile(rf"/.+/(?:partition[-_]?)?(?:[0-9]+|{BROKER_PARTITION})/[^/]+")
_PARTITION_SUFFIX: Final = re.compile(r"[^a-zA-Z0-9][0-9]+\Z")
_KEY: Final = re.compile(rb"offset", re.IGNORECASE)
_NO_OFFSETS: Final = re.compile(
    r"/consumers/[^/]+/(?:ids|owners)/.+|/coordinator/(?:currtx|currattempts|meta)(?:/.+)?"
)
"""Parts of paths without offsets, of a group's members and of Trident's other data."""


def looks_like_offsets(path: str, data: bytes, topics: Set[str] = frozenset()) -> bool:
    """Guess whether a znode contains offsets of some client.

    True for any data if the data or the path contains the word "offset", or if the path fits a
    layout. True for a list of pairs of numbers, each possibly with a topic. True for a number if
    the znode's name ends with a number, its parent is named like a partition, or a part of its path
    is in ``topics``. True for JSON with an object that maps numbers to numbers, or with a number if
    the path, a key above it or a value next to it is in ``topics``. ``topics``: the topics of the
    cluster.
    """
    if not data:
        return False
    if "offset" in path.lower() or _KEY.search(data):
        return True
    if any(LAYOUTS[name].pattern.fullmatch(path) for name in _SWEPT):
        return True
    data = _JAVA_STRING.sub(b"", data)
    if _PAIRS.fullmatch(data):
        return True
    number = bool(_NUMBER.fullmatch(data))
    if number and _PARTITION.fullmatch(path.rpartition("/")[2]):
        return True
    if _NO_OFFSETS.search(path):
        return False
    of_topic = any(_names_topic(part, topics) for part in path.split("/"))
    if number:
        return of_topic or bool(_BELOW_PARTITION.fullmatch(path))
    return data.lstrip()[:1] in (b"{", b"[") and _has_offsets(data, topics, of_topic)


def _names_topic(text: object, topics: Set[str]) -> bool:
    """Whether a text is one of the topics, possibly with a partition, as in ``TOPIC-0``."""
    return isinstance(text, str) and (text in topics or _PARTITION_SUFFIX.sub("", text) in topics)


def _has_offsets(data: bytes, topics: Set[str], of_topic: bool) -> bool:
    """Whether JSON has an object from numbers to numbers, or a number below a topic's name.

    ``of_topic``: the znode's path names a topic.
    """
    try:
        parts: list[tuple[Any, bool]] = [(json.loads(data), of_topic)]
    except (ValueError, RecursionError):
        return False
    while parts:
        value, of_topic = parts.pop()
        if isinstance(value, dict):
            if value and all(_WHOLE.fullmatch(k) and _is_whole(v) for k, v in value.items()):
                return True
            of_topic = of_topic or any(_names_topic(one, topics) for one in value.values())
            parts += [(one, of_topic or _names_topic(key, topics)) for key, one in value.items()]
        elif isinstance(value, list):
            parts += [(one, of_topic) for one in value]
        elif of_topic and _is_whole(value):
            return True
    return False


def _is_whole(value: object) -> bool:
    return type(value) is int or (isinstance(value, str) and bool(_WHOLE.fullmatch(value)))


def recognized(path: str, data: bytes) -> tuple[str, str]:
    """Return the layout of a znode that looks like offsets, and the path to give to ``--layout``.

    If no layout matches, the first is empty, and the second is the path of the znode's parent.
    """
    for name in _SWEPT:
        if match := LAYOUTS[name].pattern.fullmatch(path):
            return name, match["root"]
    seen = LAYOUTS["secor"].others
    if seen is not None and (match := seen.search(path)):
        return "secor", path[: match.start()]
    if _LIST.fullmatch(data):
        return "spark-list", path
    return "", path.rpartition("/")[0] or "/"


class Place(NamedTuple):
    """A path below which another client has stored offsets. ``name``: the layout. ``topic``: the
    topic, if the layout's znodes do not name it, otherwise empty."""

    name: str
    path: str
    topic: str = ""

    @classmethod
    def parse(cls, text: str) -> Place:
        """Return the place that a text ``LAYOUT:ZNODE[:TOPIC]`` names. Raises ValueError."""
        name, _, path = text.partition(":")
        topic = ""
        if name in ("spark-list", "brooklin"):
            path, _, topic = path.partition(":")
        if name not in LAYOUTS or not path.startswith("/"):
            raise ValueError(f"write LAYOUT:ZNODE; layouts are {', '.join(LAYOUTS)}")
        return cls(name, path.rstrip("/") or "/", topic)

    def __str__(self) -> str:
        return ":".join(filter(None, self))

    def covers(self, path: str) -> bool:
        """Whether a znode is at or below the layout's path."""
        return path == self.path or path.startswith(f"{self.path}/")


def read_offsets(name: str, nodes: Nodes, topic: str) -> dict[TopicPartition, ZkOffset]:
    """Return the offset of each partition in znodes of a layout, as its client stored it.

    ``nodes``: every znode at and below a path. ``topic``: see ``Place``. Raises ZnodeFormatError.
    """
    layout = LAYOUTS[name]
    found: dict[TopicPartition, Stored] = {}
    for one in layout.read(layout, nodes, topic):
        held = found.setdefault(one.tp, one)
        if held.offset != one.offset:
            raise ZnodeFormatError(
                one.path, f"has a different offset for {one.tp} than {held.path}"
            )
    for path, node in nodes.items():
        known = layout.pattern.fullmatch(path) or (layout.others and layout.others.search(path))
        if not known and looks_like_offsets(path, node.data):
            raise ZnodeFormatError(path, f"looks like an offset, but is not in the layout {name}")
    return {
        tp: ZkOffset(one.offset, stat.version, stat.mzxid, stat.mtime_ms)
        for tp, one in sorted(found.items())
        if one.offset is not None and one.offset >= 0
        for stat in (nodes[one.path].stat,)
    }


def is_foreign_layout(group: str, foreign: Sequence[str], has_offsets: bool) -> bool:
    """Whether these znodes are another client's offsets, not only extra znodes next to those of
    Kafka's consumer.

    ``has_offsets``: whether the group also has offset znodes of Kafka's consumer.
    """
    return bool(foreign) and not (has_offsets and all(_is_other(group, path) for path in foreign))


def reason_for(state: GroupState) -> Reason | None:
    """Return the kind of problem if a group has znodes of an unknown format, otherwise ``None``."""
    if not state.foreign:
        return None
    whole = is_foreign_layout(state.group, state.foreign, bool(state.zk))
    return Reason.FOREIGN_LAYOUT if whole else Reason.OTHER_ZNODES


def _is_other(group: str, path: str) -> bool:
    """Whether a znode is next to those of a JVM consumer, but not where Storm has offsets."""
    parent, _, name = path.rpartition("/")
    own = name in CHILDREN or LAYOUTS["storm"].pattern.fullmatch(path)
    return parent == f"{CONSUMERS}/{group}" and not own
