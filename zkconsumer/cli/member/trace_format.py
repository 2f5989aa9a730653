"""Formats requests to a group's coordinator and their answers as lines.

Uses only the attributes of the message objects that ``on_exchange`` receives. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from zkconsumer.core.common.error_codes import name_of
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.groups.formats.consumer_protocol import (
    by_topic,
    decode_assignment,
    decode_subscription,
)

_DULL: Final = frozenset({"throttle_time_ms", "protocol_type", "is_internal", "cluster_id"})


def lines(at: float, broker: BrokerEndpoint, request: Any, answer: Any) -> list[str]:
    """Return three lines: the receiver, the request and the answer. ``at``: seconds since the
    start."""
    name = type(request).__name__.removesuffix("Request")
    sent, got = dict(request.to_dict()), dict(answer.to_dict())
    if name == "JoinGroup":
        sent["protocols"] = {
            protocol.name: _subscription(protocol.metadata) for protocol in request.protocols
        }
        got["members"] = {
            member.member_id: _subscription(member.metadata) for member in answer.members
        }
    elif name == "SyncGroup":
        sent["assignments"] = {
            given.member_id: _assignment(given.assignment) for given in request.assignments
        }
        got["assignment"] = _assignment(answer.assignment)
    elif name == "Metadata":
        sent = {
            "topics": None if request.topics is None else [topic.name for topic in request.topics]
        }
        got = {"partitions": {topic.name: len(topic.partitions) for topic in answer.topics}}
    elif name == "OffsetCommit":
        sent["topics"] = _each(request.topics, "committed_offset")
        got = {"error_codes": _each(answer.topics, "error_code")}
    elif name == "OffsetFetch":
        sent["topics"] = {topic.name: list(topic.partition_indexes) for topic in request.topics}
        got = {"committed_offsets": _each(answer.topics, "committed_offset")}
    code = got.get("error_code", 0)
    outcome = f"  {name_of(code)}" if isinstance(code, int) and code else ""
    return [
        f"{at:9.3f} {name} -> {broker.host}:{broker.port}{outcome}",
        f"          sent {_fields(sent)}",
        f"          got  {_fields(got)}",
    ]


def _fields(fields: Mapping[str, object]) -> str:
    shown = {name: value for name, value in fields.items() if name not in _DULL}
    return " ".join(f"{name}={value!r}" for name, value in shown.items()) or "-"


def _each(topics: Iterable[Any], name: str) -> dict[str, object]:
    return {
        str(TopicPartition(topic.name, part.partition_index)): getattr(part, name)
        for topic in topics
        for part in topic.partitions
    }


def _subscription(raw: Any) -> object:
    try:
        data = decode_subscription(bytes(raw))
    except (ValueError, TypeError):
        return "(cannot be read)"
    shown: dict[str, object] = {"topics": list(data.topics)}
    if data.version >= 1:
        shown["owned"] = dict(by_topic(data.owned))
    if data.user_data:
        shown["user_data"] = f"{len(data.user_data)} bytes"
    return shown


def _assignment(raw: Any) -> object:
    try:
        return dict(by_topic(decode_assignment(bytes(raw)).partitions))
    except (ValueError, TypeError):
        return "(cannot be read)"
