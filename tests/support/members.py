"""Members of groups on real servers, in the process of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.servers import LocalCluster

MemberT = TypeVar("MemberT", bound=Any)
QUICK: Final = {
    "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 200,
    "auto.offset.reset": "earliest",
    "auto.commit.interval.ms": 200,
}
"""Settings of a member on the coordinator that reads from the beginning and reacts quickly."""


def keys(**more: object) -> dict[str, object]:
    """Return keys of a configuration: ``group_id="g"`` is ``group.id``."""
    return {name.replace("_", "."): value for name, value in more.items()}


def quick(cluster: LocalCluster, group: str, **more: object) -> dict[str, object]:
    """Return the configuration of a ``QUICK`` member of a group, with further ``keys``."""
    return {"bootstrap.servers": cluster.bootstrap, "group.id": group, **QUICK, **keys(**more)}


@contextmanager
def started(
    kind: Callable[[Mapping[str, object]], MemberT],
    config: Mapping[str, object],
    *accepted: type[Exception],
) -> Iterator[Callable[..., MemberT]]:
    """Yield a function that starts a member of this kind. Its arguments are further ``keys``.

    All members are shut down at the end. These may raise the ``accepted`` errors.
    """
    members: list[MemberT] = []

    def start(**more: object) -> MemberT:
        members.append(kind({**config, **keys(**more)}))
        return members[-1]

    yield start
    for member in members:
        with suppress(*accepted):
            member.shutdown()


def held(member: CoordinatorConsumerConnector) -> set[TopicPartition]:
    """Return the partitions that a member owns."""
    assert member._loop is not None
    return set(member._loop.machine.held)


def share(members: Sequence[CoordinatorConsumerConnector], count: int) -> bool:
    """Return whether all ``count`` partitions are owned, each by one member."""
    each = [held(member) for member in members]
    return len(set().union(*each)) == count == sum(map(len, each)) and all(each)


__all__ = ["QUICK", "held", "keys", "quick", "share", "started"]
