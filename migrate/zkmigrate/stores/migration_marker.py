"""``/consumers/GROUP/migration``: records that a group's offsets were moved. Pure.

The content is JSON. It has the store to which the group was moved, the time of the plan, the source
store's offsets at that time, those that the plan left out, those that a 1.1.0 broker stored below
``offset``, those that only the target had, the group's name in Kafka if different, and whether the
old client's numbers are not next offsets in ``/consumers/GROUP/offsets``. A later plan compares the
moved offsets with the current ones in the store. The time of the move is that of the znode, by
ZooKeeper's clock, because the plan may be old and an operator's clock wrong. After a rollback of
the first move the znode is empty. Its time is then that of the rollback, which gave the restored
offsets new times.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from zkconsumer.admin.reads import children
from zkconsumer.admin.snapshot import MOVED
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.migration.znodes import LivePaths, decode_mode
from zkconsumer.core.zookeeper.ops import Node
from zkconsumer.core.zookeeper.scripts.common import Script, read_many
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import ZnodeFormatError, ZooKeeperError
from zkconsumer.zk.blocking import or_refusal
from zkmigrate.model import GroupState, MigrationMarker, Record, Store, by_topic
from zkmigrate.stores import record

T = TypeVar("T")
FORMAT: Final = 1
"""Version of the format. A new key does not increase it: readers refuse unknown keys anyway, and
markers of older versions' plans must stay identical byte for byte."""
_KEYS: Final = frozenset(
    {"version", "moved_to", "at_ms", "offsets", "left", "misplaced", "kept", "kafka_group",
     "other_client"}
)  # fmt: skip
MAX_BYTES: Final = 900 * 1024
"""Largest size of a marker. ZooKeeper accepts 1 MiB in one request; a longer list of offsets is
left out."""
ROLLED_BACK: Final = b""
"""Content after a rollback of the group's first move."""
_INT64: Final = 2**63 - 1


def path(group: str) -> str:
    """Return the path of a group's migration marker. Raises ConfigError if no group can have this
    name."""
    return f"{GroupPaths(group).root}/{MOVED}"


def encode(
    moved_to: Store,
    at_ms: int,
    values: Mapping[TopicPartition, int],
    kafka_group: str = "",
    left: Mapping[TopicPartition, int] | None = None,
    misplaced: Mapping[TopicPartition, int] | None = None,
    kept: Mapping[TopicPartition, int] | None = None,
    other_client: str = "",
) -> bytes:
    """Return the content of a migration marker.

    ``values``: the offsets that are moved. ``kafka_group``: the group's name in Kafka, if
    different. ``left``, ``misplaced``, ``kept``, ``other_client``: see ``MigrationMarker``.
    """
    document: dict[str, object] = {
        "version": FORMAT,
        "moved_to": moved_to.value,
        "at_ms": at_ms,
        "offsets": by_topic(values),
    }
    others = {"left": left, "misplaced": misplaced, "kept": kept}
    document |= {name: by_topic(offsets) for name, offsets in others.items() if offsets}
    if kafka_group:
        document["kafka_group"] = kafka_group
    if other_client:
        document["other_client"] = other_client
    data = record.as_json(document)
    if len(data) > MAX_BYTES and document.pop("kept", None):
        data = record.as_json(document)
    if len(data) > MAX_BYTES:
        document["offsets"] = {}
        document.pop("left", None)
        document.pop("misplaced", None)
        data = record.as_json(document)
    return data


def offsets_in(topics: Mapping[str, Mapping[str, object]]) -> dict[TopicPartition, int]:
    """Return the offsets in the result of ``by_topic``. Raises ValueError and AttributeError."""
    values: dict[TopicPartition, int] = {}
    for topic, partitions in topics.items():
        for number, value in partitions.items():
            if type(value) is not int or not 0 <= value <= _INT64:
                raise ValueError
            values[TopicPartition(topic, int(number))] = value
    return values


def decode(where: str, node: Node) -> MigrationMarker:
    """Decode a marker. Raises ZnodeFormatError."""
    data = node.data
    if data == ROLLED_BACK:
        return MigrationMarker(None, node.stat.mtime_ms, {}, data)
    try:
        document = json.loads(data.decode())
        odd = sorted(document.keys() - _KEYS)
        if odd or (type(document["version"]) is int and document["version"] > FORMAT):
            raise ZnodeFormatError(
                where,
                "was written by another version of zkmigrate, and this one cannot read all of it"
                + (f" ({', '.join(odd)})" if odd else "")
                + ": use the other version",
            )
        if (
            document["version"] != FORMAT
            or type(document["at_ms"]) is not int
            or document["at_ms"] < 0
        ):
            raise ValueError
        values = offsets_in(document["offsets"])
        others = [offsets_in(document.get(name, {})) for name in ("left", "misplaced", "kept")]
        texts = [document.get(name, "") for name in ("kafka_group", "other_client")]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError
        renamed, client = texts
        to = Store(document["moved_to"])
        left, misplaced, kept = others
        return MigrationMarker(
            to, node.stat.mtime_ms, values, data, renamed, left, misplaced, kept, client
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ZnodeFormatError(
            where, "is not a migration marker of zkmigrate; delete it if nothing else needs it"
        ) from None


def store_in(data: bytes | None) -> str | None:
    """Return the store to which a group was moved according to a marker's content, if any."""
    return str(json.loads(data)["moved_to"]) if data else None


def decoded(
    group: str,
    marker: Node | None,
    mode: Node | None,
    written: Node | None,
    migratable: Collection[str] = (),
) -> GroupState:
    """Decode a group's marker, mode and record, if they exist. In the result, ``faults`` says which
    parts cannot be read. ``migratable``: its members that take part in a live move."""
    faults: list[str] = []

    def of(node: Node | None, default: T, decode: Callable[[Node], T]) -> T:
        try:
            return default if node is None else decode(node)
        except ZnodeFormatError as fault:
            faults.append(str(fault))
            return default

    where = LivePaths.of(group).mode
    state = GroupState(
        group,
        marker=of(marker, None, lambda node: decode(path(group), node)),
        mode=of(mode, Mode.ZOOKEEPER, lambda node: decode_mode(where, node.data)),
        record=of(written, Record(), lambda node: record.decode(record.path(group), node)),
        faults=tuple(faults),
        migratable=tuple(migratable),
        has_mode=mode is not None or bool(migratable),
    )
    return replace(state, kafka_group=_name_in_kafka(state))


def _name_in_kafka(state: GroupState) -> str:
    """Return the group's name in Kafka, if different. Members in a live move or a mirrored group
    use the group's own name, even if the group was moved under another name before."""
    marker = state.marker
    if state.mode is not Mode.ZOOKEEPER or state.record.mirror:
        return ""
    if state.record.interrupted:  # there may be no marker yet
        return state.record.kafka_group
    if marker is None or (state.has_mode and marker.moved_to is not Store.KAFKA):
        return ""
    return marker.kafka_group


def state_of(group: str) -> Script[GroupState]:
    """Return a group's record, marker and mode in ZooKeeper, without offsets; see ``decoded``."""
    paths = LivePaths.of(group)
    wanted = [path(group), paths.mode, record.path(group)]
    marker, mode, written = yield from read_many(wanted)
    members = yield from children(paths.members)
    return decoded(group, marker, mode, written, members or ())


def name_of_moved(group: str) -> Script[str | None]:
    """Return the name in Kafka of a group that was moved there; ``None`` for other groups.

    Includes groups in a live move whose offsets in Kafka are valid, groups whose move was
    interrupted, and groups whose marker or mode cannot be read, so that commands that move groups
    back report them.
    """
    state = yield from or_refusal(state_of(group))
    if isinstance(state, ZooKeeperError):
        return group
    there = state.moved_to is Store.KAFKA or state.record.interrupted or state.faults
    return state.in_kafka if there or state.mode in (Mode.KAFKA, Mode.OPEN) else None
