"""Checks of the arguments that an application gives to a connector, and the errors that it raises
for its member's answers. Pure; any thread."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Final

from zkconsumer.core.common.commands import AnswerStart, Outcome
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.znodes import topic_path
from zkconsumer.errors import (
    CommitFailedError,
    ConfigError,
    DuplicateConsumerIdError,
    ForeignMemberError,
    RebalanceFailedError,
    ZkConsumerError,
    ZooKeeperError,
)

_LAST: Final = 2**63 - 1


def check_topic_counts(topic_count_map: Mapping[str, int]) -> None:
    """Raise ConfigError naming each illegal topic or stream count."""
    faults = []
    for topic, count in topic_count_map.items():
        try:
            topic_path(topic)
        except ZkConsumerError as error:
            faults.append(str(error))
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= 1000:
            faults.append(f"topic {topic!r}: number of streams must be 1 to 1000, is {count!r}")
    if faults:
        raise ConfigError(faults)


def checked_offsets(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return offsets given for a commit. Raises ConfigError naming each invalid one."""
    checked = {TopicPartition(*tp): offset for tp, offset in offsets.items()}
    bad = [
        f"{tp}: an offset is a number from 0 to {_LAST}, not {offset!r}"
        for tp, offset in checked.items()
        if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= _LAST
    ]
    bad += [
        f"{tuple(tp)!r}: a partition is the name of a topic and a number"
        for tp in checked
        if not isinstance(tp.topic, str) or not isinstance(tp.partition, Integral)
    ]
    if bad:
        raise ConfigError(bad)
    return checked


def start_error(answer: AnswerStart) -> ZkConsumerError | None:
    """Return why a member could not start; ``None`` if it could."""
    match answer.outcome:
        case Outcome.SETTLED:
            return None
        case Outcome.REBALANCE_FAILED:
            return RebalanceFailedError(answer.detail)
        case Outcome.DUPLICATE_ID:
            return DuplicateConsumerIdError(f"consumer.id: {answer.detail}")
        case Outcome.REFUSED:
            return ZooKeeperError(answer.detail)
        case Outcome.FOREIGN_MEMBER:
            return ForeignMemberError(answer.detail)
        case Outcome.UNUSABLE:
            return ConfigError([answer.detail])


def commit_error(faults: tuple[str, ...]) -> CommitFailedError | None:
    """Return the error of a commit whose offsets are not all stored; ``None`` if they are."""
    return CommitFailedError("; ".join(faults)) if faults else None
