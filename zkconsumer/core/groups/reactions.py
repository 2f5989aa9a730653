"""Reactions of a member to each error code, for each request: data, from which the reference page
is generated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from zkconsumer.core.common import error_codes
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups import events

UNREACHABLE: Final = ErrorCode.UNKNOWN_SERVER_ERROR
"""Code of a request without an answer. A broker that answers with it has failed, too."""


class Request(Enum):
    """A kind of request to the coordinator."""

    FIND = "FindCoordinator"
    JOIN = "JoinGroup"
    SYNC = "SyncGroup"
    HEARTBEAT = "Heartbeat"
    COMMIT = "OffsetCommit"
    FETCH = "OffsetFetch"


class Reaction(Enum):
    """The member's reaction to an answer."""

    PROCEED = "continue"
    RETRY = "wait `rebalance.backoff.ms`, then send it again"
    AFTER_HEARTBEAT = "send it again with the epoch from the next heartbeat's response"
    FIND_AGAIN = "look for the coordinator again"
    REJOIN = "commit and release its partitions, then join again with the same member id"
    LOST = "drop its partitions without a commit, then join again with the same member id"
    EXPELLED = "drop its partitions without a commit, then join again as a new member"
    TAKE_ID = "rejoin at once with the member id from the response"
    REFUSE = "store nothing, and report the error to the caller"
    FATAL = "drop its partitions and end the streams with the error"


_WORST_FIRST: Final = (
    Reaction.FATAL,
    Reaction.EXPELLED,
    Reaction.LOST,
    Reaction.FIND_AGAIN,
    Reaction.AFTER_HEARTBEAT,
    Reaction.RETRY,
    Reaction.REFUSE,
    Reaction.PROCEED,
)
SENT_AGAIN: Final = frozenset({Reaction.FIND_AGAIN, Reaction.RETRY, Reaction.AFTER_HEARTBEAT})
_ALL: Final = tuple(Request)


@dataclass(frozen=True, slots=True)
class Row:
    """One error code and the reactions to it. A broker should not return this code for requests
    that are not in ``reactions``. If it does, the reaction is ``FATAL``, or ``REFUSE`` for a
    commit."""

    code: int
    meaning: str
    reactions: Mapping[Request, Reaction]


def each(
    every: Iterable[Request], reaction: Reaction, **others: Reaction
) -> dict[Request, Reaction]:
    """Map every request to ``reaction``. ``others`` has the exceptions, by request name."""
    return dict.fromkeys(every, reaction) | {Request[name]: what for name, what in others.items()}


def away(every: Iterable[Request]) -> tuple[Row, ...]:
    """Return the rows about a coordinator that is unreachable, has moved, or cannot answer yet."""
    again = each(every, Reaction.FIND_AGAIN, FIND=Reaction.RETRY)
    return (
        Row(UNREACHABLE, "The connection broke, or the coordinator did not answer in time", again),
        Row(
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            "The coordinator is still reading the group from `__consumer_offsets`",
            each(every, Reaction.RETRY),
        ),
        Row(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            "The partition of `__consumer_offsets` has no leader, or does not exist yet",
            again,
        ),
        Row(ErrorCode.NOT_COORDINATOR, "The group has moved to another broker", again),
        Row(
            ErrorCode.UNSTABLE_OFFSET_COMMIT,
            "An open transaction commits offsets of the group",
            {Request.FETCH: Reaction.RETRY},
        ),
    )


TABLE: Final[tuple[Row, ...]] = (
    *away(_ALL),
    Row(
        ErrorCode.ILLEGAL_GENERATION,
        "The group has a newer generation, without this member",
        {
            Request.JOIN: Reaction.LOST,
            Request.SYNC: Reaction.LOST,
            Request.HEARTBEAT: Reaction.LOST,
            Request.COMMIT: Reaction.LOST,
        },
    ),
    Row(
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        "No strategy is common to all members, or other members are not consumers",
        {Request.JOIN: Reaction.FATAL, Request.SYNC: Reaction.FATAL},
    ),
    Row(
        ErrorCode.UNKNOWN_MEMBER_ID,
        "The coordinator has removed this member, or never knew it",
        {
            Request.JOIN: Reaction.EXPELLED,
            Request.SYNC: Reaction.EXPELLED,
            Request.HEARTBEAT: Reaction.EXPELLED,
            Request.COMMIT: Reaction.EXPELLED,
        },
    ),
    Row(
        ErrorCode.INVALID_SESSION_TIMEOUT,
        "The broker does not allow this `session.timeout.ms`",
        {Request.JOIN: Reaction.FATAL},
    ),
    Row(
        ErrorCode.REBALANCE_IN_PROGRESS,
        "Other members join or leave; this member is still in the group",
        {
            Request.JOIN: Reaction.RETRY,
            Request.SYNC: Reaction.REJOIN,
            Request.HEARTBEAT: Reaction.REJOIN,
            Request.COMMIT: Reaction.REFUSE,
        },
    ),
    Row(
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        "This principal is not authorized to use the group",
        each(_ALL, Reaction.FATAL, COMMIT=Reaction.REFUSE),
    ),
    Row(
        ErrorCode.MEMBER_ID_REQUIRED,
        "The coordinator assigns an id before it accepts a new member",
        {Request.JOIN: Reaction.TAKE_ID},
    ),
    Row(
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        "The group has as many members as the broker allows",
        {Request.JOIN: Reaction.FATAL},
    ),
    Row(
        ErrorCode.FENCED_INSTANCE_ID,
        "Another process has joined with the same `group.instance.id`",
        each(_ALL, Reaction.FATAL),
    ),
)


def by_code(table: Iterable[Row]) -> dict[int, Row]:
    """Return the rows of a table by their codes."""
    return {row.code: row for row in table}


_BY_CODE: Final = by_code(TABLE)


def reaction(request: Request, code: int, rows: Mapping[int, Row] = _BY_CODE) -> Reaction:
    """Return the reaction to ``code`` in the answer to ``request``. Defined for every integer."""
    if code == ErrorCode.NONE:
        return Reaction.PROCEED
    unexpected = Reaction.REFUSE if request is Request.COMMIT else Reaction.FATAL
    row = rows.get(code)
    return unexpected if row is None else row.reactions.get(request, unexpected)


def codes_of(
    answer: events.OffsetsCommitted | events.RequestFailed, sent: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the code for each partition of a commit. A partition missing from the answer is not
    stored."""
    if isinstance(answer, events.RequestFailed):
        return dict.fromkeys(sent, answer.code)
    return {tp: answer.codes.get(tp, ErrorCode.COORDINATOR_NOT_AVAILABLE) for tp in sent}


def worst(codes: Iterable[int], rows: Mapping[int, Row] = _BY_CODE) -> tuple[Reaction, int]:
    """Return the reaction to a commit whose partitions have different codes, and the deciding
    code."""
    deciding = {reaction(Request.COMMIT, code, rows): code for code in codes}
    what = next((each for each in _WORST_FIRST if each in deciding), Reaction.PROCEED)
    return what, deciding.get(what, ErrorCode.NONE)


def name_of(code: int) -> str:
    """Return the name and number of an answer's error code."""
    return "no answer" if code == UNREACHABLE else error_codes.name_of(code)
