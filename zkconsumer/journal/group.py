"""Journal of members of a group in Kafka: the same lines as for groups in ZooKeeper.

Requests to brokers are operations. Called by the thread that runs the member.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from zkconsumer.core.groups import (
    commands,
    events,
    kip848_commands as member_commands,
    kip848_events as member_events,
)
from zkconsumer.core.groups.formats.consumer_protocol import decode_assignment
from zkconsumer.core.groups.reactions import name_of
from zkconsumer.journal.counts import REQUEST
from zkconsumer.journal.recorder import Entry, Observer, Recorder, names_of, offsets_of
from zkconsumer.journal.schema import Kind


class GroupObserver(Observer, Protocol):
    """Observes a member of a group on the coordinator."""

    def request(
        self, command: Any, answer: Any, sent_us: int, generation: int, attempt: int
    ) -> None:
        """Record the answer to the request for ``command``, sent at ``sent_us``, or its failure."""


class GroupRecorder(Recorder):
    """Writes the journal of one member of a group in Kafka. The arguments are those of
    ``Recorder``."""

    def _entry(self, kind: Kind, what: object, epoch: int, attempt: int) -> Entry:
        return super()._entry(kind, what, 0, attempt) | {"generation": epoch}

    def _describe(self, what: Any, entry: Entry) -> None:
        super()._describe(what, entry)
        _describe(what, entry)

    def request(
        self, command: Any, answer: Any, sent_us: int, generation: int, attempt: int
    ) -> None:
        """Write an operation."""
        entry = self._entry(Kind.OP, command, generation, attempt)
        entry |= {"sent": sent_us, "result": result_of(answer)}
        self._sink.write(entry | self._spent(command, answer))

    def _spent(self, command: Any, answer: Any) -> dict[str, int]:
        """Return the counts of a request."""
        return REQUEST._asdict()


def result_of(answer: Any) -> str:
    """Return ``ok``, or the name of the answer's error code."""
    match answer:
        case (
            events.RequestFailed(_, code)
            | events.HeartbeatAnswered(_, code)
            | member_events.MemberHeartbeatAnswered(_, code)
        ) if code:
            return name_of(code)
        case events.OffsetsCommitted(_, codes):
            return next((name_of(code) for code in codes.values() if code), "ok")
    return "ok"


def _given(assignment: bytes) -> list[str]:
    try:
        return names_of(decode_assignment(assignment).partitions)
    except ValueError:
        return []


def _listed(partitions: Mapping[str, tuple[int, ...]] | None) -> list[str]:
    """Return partitions as texts ``topic id-number``."""
    pairs = (partitions or {}).items()
    return [f"{topic_id}-{number}" for topic_id, numbers in sorted(pairs) for number in numbers]


def _describe(what: Any, entry: Entry) -> None:
    """Add the fields that entries of members in ZooKeeper do not have."""
    more: dict[str, Any] = {}
    match what:
        case events.TopicsLoaded(_, partitions):
            more["detail"] = " ".join(f"{topic}:{n}" for topic, n in sorted(partitions.items()))
        case events.Joined(_, _, generation, leader, protocol, members):
            more["members"] = [member.member_id for member in members]
            more["detail"] = f"generation {generation}, {protocol}, led by {leader}"
        case events.Synced(_, assignment):
            more["partitions"] = _given(assignment)
        case events.OffsetsFetched(_, offsets) | commands.CommitOffsets(_, _, _, offsets):
            more["offsets"] = offsets_of(offsets)
        case events.OffsetsCommitted() | events.HeartbeatAnswered():
            more["result"] = result_of(what)
        case member_events.MemberHeartbeatAnswered(_, code, detail, epoch, _, given):
            more |= {"result": result_of(what), "detail": detail or f"epoch {epoch}"}
            more["partitions"] = _listed(given)
        case member_commands.MemberHeartbeat(_, _, epoch, full, owned):
            more["detail"] = f"epoch {epoch}{', whole' if full else ''}"
            more["partitions"] = _listed(owned)
        case member_events.TopicNamesRead(_, names):
            more["detail"] = " ".join(
                f"{topic_id}:{name}" for topic_id, name in sorted(names.items())
            )
        case events.RequestFailed(_, code, detail):
            more |= {"result": name_of(code), "detail": detail}
        case (
            commands.FetchOffsets(_, wanted) | member_commands.FetchMemberOffsets(partitions=wanted)
        ):
            more["partitions"] = names_of(wanted)
        case commands.JoinGroup(_, name, protocols):
            more["detail"] = f"{name or 'no member id'}: {', '.join(n for n, _ in protocols)}"
    entry |= {name: value for name, value in more.items() if value or value == 0}
