"""Reactions of a KIP-848 member to each error code, for each request: data.

Source: ConsumerHeartbeatRequestManager and CommitRequestManager of Kafka 4.0, except for
    UNRELEASED_INSTANCE_ID, after which the Java consumer does not retry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.groups import reactions
from zkconsumer.core.groups.reactions import Reaction, Request, Row, by_code

_JOIN, _BEAT, _COMMIT, _FETCH = Request.JOIN, Request.HEARTBEAT, Request.COMMIT, Request.FETCH

_ALL: Final = (Request.FIND, _JOIN, _BEAT, _COMMIT, _FETCH)


TABLE: Final[tuple[Row, ...]] = (
    *reactions.away(_ALL),
    Row(
        ErrorCode.REQUEST_TIMED_OUT,
        "The coordinator could not store the request's data in time",
        reactions.each(_ALL, Reaction.FIND_AGAIN, FIND=Reaction.RETRY),
    ),
    Row(
        ErrorCode.UNKNOWN_MEMBER_ID,
        "The coordinator has removed this member, or never knew it",
        {
            _JOIN: Reaction.RETRY,
            _BEAT: Reaction.LOST,
            _COMMIT: Reaction.LOST,
            _FETCH: Reaction.LOST,
        },
    ),
    Row(
        ErrorCode.FENCED_MEMBER_EPOCH,
        "The coordinator has another epoch: the group has continued without this member",
        {_JOIN: Reaction.RETRY, _BEAT: Reaction.LOST},
    ),
    Row(
        ErrorCode.STALE_MEMBER_EPOCH,
        "The request was sent before a newer epoch arrived",
        {
            _BEAT: Reaction.LOST,
            _COMMIT: Reaction.AFTER_HEARTBEAT,
            _FETCH: Reaction.AFTER_HEARTBEAT,
        },
    ),
    Row(
        ErrorCode.ILLEGAL_GENERATION,
        "The group uses another protocol, or has continued without this member",
        {_COMMIT: Reaction.LOST, _FETCH: Reaction.LOST},
    ),
    Row(
        ErrorCode.GROUP_ID_NOT_FOUND,
        "The group does not exist. While joining: a group of this name uses another protocol",
        {
            _JOIN: Reaction.FATAL,
            _BEAT: Reaction.LOST,
            _COMMIT: Reaction.LOST,
            _FETCH: Reaction.LOST,
        },
    ),
    Row(
        ErrorCode.UNRELEASED_INSTANCE_ID,
        "Another member still uses this `group.instance.id`. Fatal after its session timeout",
        {_JOIN: Reaction.RETRY},
    ),
    Row(
        ErrorCode.FENCED_INSTANCE_ID,
        "Another process has joined with the same `group.instance.id`",
        reactions.each(_ALL, Reaction.FATAL),
    ),
    Row(
        ErrorCode.UNSUPPORTED_VERSION,
        "The broker does not offer the protocol. Not fatal after a first heartbeat was accepted, "
        "because a broker that is starting does not offer it yet",
        reactions.each(_ALL, Reaction.FATAL),
    ),
    Row(
        ErrorCode.UNSUPPORTED_ASSIGNOR,
        "The broker does not have the assignor of `group.remote.assignor`",
        {_JOIN: Reaction.FATAL, _BEAT: Reaction.FATAL},
    ),
    Row(
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        "The topic pattern is not valid in RE2 syntax",
        {_JOIN: Reaction.FATAL, _BEAT: Reaction.FATAL},
    ),
    Row(
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        "The group has as many members as the broker allows",
        {_JOIN: Reaction.FATAL, _BEAT: Reaction.FATAL},
    ),
    Row(
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        "This principal is not authorized to use the group",
        reactions.each(_ALL, Reaction.FATAL, COMMIT=Reaction.REFUSE),
    ),
    Row(
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "This principal is not authorized to describe the topics",
        {_JOIN: Reaction.FATAL, _BEAT: Reaction.FATAL, _COMMIT: Reaction.REFUSE},
    ),
)

ROWS: Final = by_code(TABLE)
ROWS_OF_MEMBERS: Final = ROWS | by_code(
    [
        Row(
            ErrorCode.UNSUPPORTED_VERSION,
            "",
            reactions.each(_ALL, Reaction.FIND_AGAIN, FIND=Reaction.RETRY),
        )
    ]
)
"""``ROWS`` once the coordinator has accepted a heartbeat."""
HINTS: Final[Mapping[int, str]] = {
    ErrorCode.UNSUPPORTED_VERSION: "group.protocol=consumer is disabled on the broker: it needs "
    "`consumer` in group.coordinator.rebalance.protocols and the feature group.version=1; "
    "otherwise set group.protocol=classic",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "set group.remote.assignor to one of the broker's "
    "group.consumer.assignors",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "correct the pattern of topics: with "
    "group.protocol=consumer the broker evaluates it as RE2",
    ErrorCode.UNRELEASED_INSTANCE_ID: "another member still has this group.instance.id: end it, or "
    "give this one another",
    ErrorCode.GROUP_ID_NOT_FOUND: "the members of this group use another protocol: set "
    "group.protocol=classic, or allow both with the broker's group.consumer.migration.policy. "
    "Where a custom assignor is in use, first give all members one of Kafka's strategies; a group "
    "of migratable members gets one from the first classic member after zkmigrate live finalize",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "raise the broker's group.consumer.max.size",
}
"""Advice for errors that end the member."""
