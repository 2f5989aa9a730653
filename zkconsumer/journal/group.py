"""Journal and counts of members of a group on the brokers: the same lines, the same tally.

Requests to brokers are operations. Their cost follows from the fields of command and answer, as
``zkconsumer.journal.wire`` computes it for ZooKeeper. Called by the thread that runs the member.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.consumer_group import commands as member_commands, events as member_events
from zkconsumer.core.coordinator import commands, events
from zkconsumer.core.coordinator.commands import Command
from zkconsumer.core.coordinator.events import Event
from zkconsumer.core.coordinator.reactions import name_of
from zkconsumer.core.coordinator.wire import by_topic, decode_assignment
from zkconsumer.journal.recorder import Entry, Recorder, Sink
from zkconsumer.journal.schema import Kind
from zkconsumer.journal.tally import GROUP_KINDS, Tally
from zkconsumer.journal.wire import Cost

_ANSWER: Final = 8  # length, correlation id
_BROKER: Final = 4 + 2 + 10 + 4 + 2  # id, host of ten characters, port, no rack


class GroupObserver(Protocol):
    """Called for every action of a member, in order. Must be quick, and must not raise."""

    def event(self, event: Event, generation: int, attempt: int) -> None:
        """Called before the core gets ``event``."""

    def command(self, command: Command, generation: int, attempt: int) -> None:
        """The core wants ``command``."""

    def request(
        self, command: Any, answer: Any, sent_us: int, generation: int, attempt: int
    ) -> None:
        """The request for ``command``, sent at ``sent_us``, was answered or abandoned."""


class GroupRecorder(Recorder):
    """Writes the entries of one member.

    Args as of ``Recorder``; ``group``, ``client_id`` and ``instance_id`` are for sizes on the wire.
    """

    def __init__(
        self,
        sink: Sink,
        member: str,
        now_us: Callable[[], int],
        group: str,
        client_id: str = "",
        instance_id: str | None = None,
    ) -> None:
        super().__init__(sink, member, now_us)
        self._wire = Wire(group, client_id, instance_id)

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
        self._sink.write(entry | dataclasses.asdict(self._wire.cost(command, answer)))


class GroupCounter:
    """Feeds a tally with one member of a simulation. Arguments as of ``GroupRecorder``."""

    def __init__(
        self, tally: Tally, member: str, now_us: Callable[[], int], group: str, client_id: str = ""
    ) -> None:
        self._tally = tally
        self._member = member
        self._now_us = now_us
        self._wire = Wire(group, client_id, None)

    def event(self, event: Event, generation: int, attempt: int) -> None:
        """No cost."""

    def command(self, command: Command, generation: int, attempt: int) -> None:
        """Follow ownership."""
        now, ownership = self._now_us(), self._tally.ownership
        match command:
            case commands.StartFetching(_, partitions):
                for tp in partitions:
                    ownership.took(now, tp, self._member)
            case commands.Forget(gone) | commands.Drop(gone):
                for tp in gone:
                    ownership.lost(now, tp, self._member)

    def request(
        self, command: Any, answer: Any, sent_us: int, generation: int, attempt: int
    ) -> None:
        """Count an operation."""
        name, spent = type(command).__name__, self._wire.cost(command, answer)
        self._tally.spend(self._now_us(), self._member, GROUP_KINDS[name], spent, sent_us)
        self._tally.asked(self._member, name, result_of(answer))


def result_of(answer: Any) -> str:
    """``ok``, or the code's name."""
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


class Wire:
    """Sizes of requests in the versions that a member uses with brokers since 2.3.

    For topic metadata, one replica of each partition is counted, because an answer does not contain
    more.
    """

    def __init__(self, group: str, client_id: str, instance_id: str | None) -> None:
        self._head = 4 + 8 + 2 + len(client_id.encode())
        self._group = _text(group)
        self._instance = 2 + len((instance_id or "").encode())

    def cost(self, command: Any, answer: Any) -> Cost:
        """The cost of ``command`` and its ``answer``."""
        out = self._head + self._out(command)
        return Cost(1, 0, 0, 0, out, 0 if _unanswered(answer) else _ANSWER + _in(command, answer))

    def _out(self, command: Any) -> int:
        match command:
            case commands.FindCoordinator():
                return self._group
            case commands.LoadTopics(_, topics):
                return 4 + sum(map(_text, topics or ())) + 1
            case commands.JoinGroup(_, name, protocols):
                size = self._group + 8 + _text(name) + self._instance + _text("consumer") + 4
                return size + sum(_text(n) + 4 + len(raw) for n, raw in protocols)
            case commands.SyncGroup(_, name, _, given):
                size = self._group + 4 + _text(name) + self._instance + 4
                return size + sum(_text(n) + 4 + len(raw) for n, raw in given.items())
            case commands.Heartbeat(_, name):
                return self._group + 4 + _text(name) + self._instance
            case commands.LeaveGroup(_, name):
                return self._group + _text(name)
            case commands.FetchOffsets(_, partitions):
                return self._group + _partitions(partitions, 4)
            case commands.CommitOffsets(_, name, _, positions):
                size = self._group + 4 + _text(name) + self._instance
                return size + _partitions(positions, 4 + 8 + 4 + 2)
            case member_commands.MemberHeartbeat(_, name, _, full, owned):
                size = 1 + self._group + _text(name) + 4 + self._instance + 4 + 6
                return size + _by_id(owned) + (20 if full else 0)
            case member_commands.ReadTopicNames(_, ids):
                return 1 + 4 + 18 * len(ids) + 2
            case member_commands.FetchMemberOffsets(_, name, _, partitions):
                return 1 + self._group + _text(name) + 4 + _partitions(partitions, 4) + 2
        raise TypeError(type(command).__name__)


def _in(command: Any, answer: Any) -> int:
    match answer:
        case events.CoordinatorFound():
            return 2 + _BROKER - 2
        case events.TopicsLoaded(_, partitions, brokers):
            size = 4 + 4 + len(brokers) * _BROKER + 2 + 22 + 4 + 4
            return size + sum(
                2 + _text(topic) + 1 + 4 + count * (2 + 4 + 4 + 8 + 8)
                for topic, count in partitions.items()
            )
        case events.Joined(_, name, _, leader, protocol, members):
            size = 4 + 2 + 4 + _text(protocol) + _text(leader) + _text(name) + 4
            return size + sum(
                _text(one.member_id) + 2 + len(one.instance_id or "") + 4 + len(one.metadata)
                for one in members
            )
        case events.Synced(_, assignment):
            return 4 + 2 + 4 + len(assignment)
        case events.OffsetsFetched(_, offsets):
            return 4 + _partitions(offsets, 4 + 8 + 4 + 2 + 2) + 2
        case events.OffsetsCommitted(_, codes):
            return 4 + _partitions(codes, 4 + 2)
        case member_events.MemberHeartbeatAnswered(assignment=given):
            return 4 + 2 + 2 + 38 + 4 + 4 + _by_id(given)
        case member_events.TopicNamesRead(_, names, brokers):
            size = 4 + len(brokers) * _BROKER + 24
            return size + sum(20 + _text(name) for name in names.values())
        case events.RequestFailed():
            return _refused(command, answer)
    return 4 + 2


def _refused(command: Any, answer: events.RequestFailed) -> int:
    match command:
        case commands.FindCoordinator():
            return 2 + 4 + _text("") + 4
        case commands.JoinGroup():
            return _in(command, events.Joined(0, answer.member_id, -1, "", ""))
        case commands.SyncGroup():
            return _in(command, events.Synced(0, b""))
        case commands.FetchOffsets():
            return _in(command, events.OffsetsFetched(0, {}))
        case commands.CommitOffsets(_, _, _, positions):
            return _in(command, events.OffsetsCommitted(0, positions))
    return 4 + 2


def _unanswered(answer: Any) -> bool:
    kinds = (
        events.RequestFailed,
        events.HeartbeatAnswered,
        member_events.MemberHeartbeatAnswered,
    )
    return isinstance(answer, kinds) and answer.code < 0


def _by_id(partitions: Mapping[str, tuple[int, ...]] | None) -> int:
    """Partitions by topic id; one byte if there are none."""
    return 1 + sum(18 + 4 * len(numbers) for numbers in (partitions or {}).values())


def _text(text: str) -> int:
    return 2 + len(text.encode())


def _partitions(partitions: Iterable[TopicPartition], each: int) -> int:
    return 4 + sum(_text(t) + 4 + each * len(found) for t, found in by_topic(partitions).items())


def _given(assignment: bytes) -> list[str]:
    try:
        return [str(tp) for tp in sorted(decode_assignment(assignment).partitions)]
    except ValueError:
        return []


def _listed(partitions: Mapping[str, tuple[int, ...]] | None) -> list[str]:
    """Partitions as ``topic id-number``."""
    found = (partitions or {}).items()
    return [f"{one}-{number}" for one, numbers in sorted(found) for number in numbers]


def _describe(what: Any, entry: Entry) -> None:
    """Add the fields that members in ZooKeeper do not have."""
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
            more["offsets"] = {str(tp): n for tp, n in sorted(offsets.items()) if n is not None}
        case events.OffsetsCommitted() | events.HeartbeatAnswered():
            more["result"] = result_of(what)
        case member_events.MemberHeartbeatAnswered(_, code, detail, epoch, _, given):
            more |= {"result": result_of(what), "detail": detail or f"epoch {epoch}"}
            more["partitions"] = _listed(given)
        case member_commands.MemberHeartbeat(_, _, epoch, full, owned):
            more["detail"] = f"epoch {epoch}{', whole' if full else ''}"
            more["partitions"] = _listed(owned)
        case member_events.TopicNamesRead(_, names):
            more["detail"] = " ".join(f"{one}:{name}" for one, name in sorted(names.items()))
        case events.RequestFailed(_, code, detail):
            more |= {"result": name_of(code), "detail": detail}
        case (
            commands.FetchOffsets(_, partitions)
            | member_commands.FetchMemberOffsets(partitions=partitions)
            | commands.NotifyLost(_, partitions)
        ):
            more["partitions"] = [str(tp) for tp in sorted(partitions)]
        case commands.Forget(partitions):
            more["partitions"] = [str(tp) for tp in sorted(partitions)]
        case commands.JoinGroup(_, name, protocols):
            more["detail"] = f"{name or 'no member id'}: {', '.join(n for n, _ in protocols)}"
        case commands.Fail(code, text):
            more |= {"result": name_of(code), "detail": text}
        case commands.Close(faults):
            more["detail"] = "; ".join(faults)
    entry |= {name: value for name, value in more.items() if value or value == 0}
