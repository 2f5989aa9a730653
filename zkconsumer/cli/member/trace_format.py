"""Shows requests to a group's coordinator and their answers: as lines, and as a Mermaid diagram.

Works on the message objects that ``on_exchange`` hands out, of which it knows only the attributes.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from zkconsumer.core.common.error_codes import name_of
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.groups.formats.consumer_protocol import (
    by_topic,
    decode_assignment,
    decode_subscription,
)

_DULL: Final = frozenset({"throttle_time_ms", "protocol_type", "is_internal", "cluster_id"})


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer, ``at`` seconds after the start."""

    at: float
    broker: BrokerEndpoint
    name: str
    sent: Mapping[str, object]
    got: Mapping[str, object]

    @property
    def outcome(self) -> str:
        """Return the name and number of the answer's error, or an empty text."""
        code = self.got.get("error_code", 0)
        return name_of(code) if isinstance(code, int) and code else ""


def exchange(at: float, broker: BrokerEndpoint, request: Any, answer: Any) -> Exchange:
    """Extract the fields of a request and its answer."""
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
    return Exchange(at, broker, name, _plain(sent), _plain(got))


def lines(exchanged: Exchange) -> list[str]:
    """Three lines: the receiver, the request and the answer."""
    where = f"{exchanged.broker.host}:{exchanged.broker.port}"
    outcome = f"  {exchanged.outcome}" if exchanged.outcome else ""
    return [
        f"{exchanged.at:9.3f} {exchanged.name} -> {where}{outcome}",
        f"          sent {_fields(exchanged.sent)}",
        f"          got  {_fields(exchanged.got)}",
    ]


@dataclass(slots=True)
class Diagram:
    """Collects a run; ``text`` draws it. Heartbeats in a row are one arrow."""

    _rows: list[tuple[str, str, str]] = field(default_factory=list)
    _times: list[int] = field(default_factory=list)

    def add(self, exchanged: Exchange) -> None:
        """Take one exchange in."""
        row = (exchanged.name, _asked(exchanged), exchanged.outcome or _told(exchanged))
        same = self._rows and self._rows[-1] == row
        if same and exchanged.name in ("Heartbeat", "Metadata", "OffsetCommit"):
            self._times[-1] += 1
        else:
            self._rows.append(row)
            self._times.append(1)

    def text(self) -> str:
        """The run as a Mermaid sequence diagram."""
        parts = ["sequenceDiagram", "    participant M as Member", "    participant C as Broker"]
        for (name, asked, result), times in zip(self._rows, self._times, strict=True):
            often = f" (x {times})" if times > 1 else ""
            parts.append(f"    M->>C: {name}{often}{': ' + asked if asked else ''}")
            parts.append(f"    C-->>M: {result or 'ok'}")
        return "\n".join(parts) + "\n"


def _asked(exchanged: Exchange) -> str:
    sent = exchanged.sent
    match exchanged.name:
        case "JoinGroup":
            protocols = sent["protocols"]
            names = ", ".join(protocols) if isinstance(protocols, Mapping) else ""
            return f"{'with' if sent.get('member_id') else 'without'} member id, {names}"
        case "SyncGroup":
            return f"generation {sent['generation_id']}" + (
                ", everybody's assignment" if sent["assignments"] else ""
            )
        case "Heartbeat":
            return f"generation {sent['generation_id']}"
        case "OffsetCommit":
            return f"generation {sent['generation_id_or_member_epoch']}"
        case _:
            return ""


def _told(exchanged: Exchange) -> str:
    got = exchanged.got
    match exchanged.name:
        case "FindCoordinator":
            return f"broker {got['node_id']}"
        case "JoinGroup":
            leads = got["leader"] == got["member_id"]
            return f"generation {got['generation_id']}, {'leader' if leads else 'follower'}"
        case "SyncGroup":
            return str(got["assignment"])
        case "Metadata":
            return f"partitions {got['partitions']}"
        case _:
            return ""


def _plain(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if name not in _DULL}


def _fields(fields: Mapping[str, object]) -> str:
    return " ".join(f"{name}={value!r}" for name, value in fields.items()) or "-"


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
