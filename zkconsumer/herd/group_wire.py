"""Sizes of requests to brokers and of their answers, from the fields of command and
answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups import (
    commands,
    events,
    kip848_commands as member_commands,
    kip848_events as member_events,
)
from zkconsumer.core.groups.formats.consumer_protocol import by_topic
from zkconsumer.herd.wire import Cost
from zkconsumer.journal.counts import REQUEST

_ANSWER: Final = 8  # length, correlation id
_BROKER: Final = 4 + 2 + 10 + 4 + 2  # id, host of ten characters, port, no rack


class Wire:
    """Sizes of requests, in the versions that a member uses with brokers since 2.5.

    For topic metadata, one replica of each partition is counted, because the recorded answer
    contains only one.
    """

    def __init__(self, group: str, client_id: str, instance_id: str | None) -> None:
        self._head = 4 + 8 + 2 + len(client_id.encode())
        self._group = _text(group)
        self._compact_group = _compact(group)
        self._instance = 2 + len((instance_id or "").encode())

    def cost(self, command: Any, answer: Any) -> Cost:
        """Return the cost of ``command`` and its ``answer``."""
        out = self._head + self._out(command)
        return Cost(*REQUEST, out, 0 if _unanswered(answer) else _ANSWER + _in(command, answer))

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
                return 1 + self._compact_group + _compact_partitions(partitions, 4) + 2
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
                _text(member.member_id)
                + 2
                + len(member.instance_id or "")
                + 4
                + len(member.metadata)
                for member in members
            )
        case events.Synced(_, assignment):
            return 4 + 2 + 4 + len(assignment)
        case events.OffsetsFetched(_, offsets) if isinstance(command, commands.FetchOffsets):
            return 1 + 4 + _compact_partitions(offsets, 4 + 8 + 4 + 1 + 2 + 1) + 2 + 1
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
    """Return the size of partitions by topic id; one byte if there are none."""
    return 1 + sum(18 + 4 * len(numbers) for numbers in (partitions or {}).values())


def _text(text: str) -> int:
    return 2 + len(text.encode())


def _length(count: int) -> int:
    """Return the size of the length field of a compact text or array: seven bits in each byte."""
    return max(1, -(-(count + 1).bit_length() // 7))


def _compact(text: str) -> int:
    count = len(text.encode())
    return _length(count) + count


def _compact_partitions(partitions: Iterable[TopicPartition], each: int) -> int:
    """Return the size of partitions by topic in a flexible version (KIP-482)."""
    topics = by_topic(partitions)
    return _length(len(topics)) + sum(
        _compact(t) + _length(len(numbers)) + each * len(numbers) + 1
        for t, numbers in topics.items()
    )


def _partitions(partitions: Iterable[TopicPartition], each: int) -> int:
    return 4 + sum(
        _text(t) + 4 + each * len(numbers) for t, numbers in by_topic(partitions).items()
    )
