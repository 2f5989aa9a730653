"""Reads mirrored groups in both stores.

A group's data in ZooKeeper is cached, with watches. Only data whose watch has fired is read again.
Everything is read again after the connection was lost, as its watches are lost too, and after some
time in any case. Where Kafka leads, its offsets are cached and compared with later answers. A
command that changes a group reads it again (``read``), as does every check right before a write.

One thread uses a ``Readings``.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple, TypeVar

from zkconsumer.broker.groups.coordinator_calls import Answered, StoredOffset
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Node
from zkconsumer.core.zookeeper.scripts.common import Script
from zkconsumer.errors import BrokerError, ZkUnavailableError, ZooKeeperError
from zkconsumer.zk.blocking import or_refusal
from zkmigrate.errors import GroupRefusedError
from zkmigrate.model import KafkaOffset, Mirror, Store
from zkmigrate.plan.mirror import Reading
from zkmigrate.stores import mirror_state
from zkmigrate.stores.mirror_state import InZooKeeper
from zkmigrate.stores.offset_znodes import misplaced_offsets, misplaced_root, readable_at
from zkmigrate.stores.sessions import Stores

BELOW_S: Final = 10.0
"""Seconds for which a pass uses the cached data below ``offset``."""
_FRESH: Final = 1.0
"""Seconds for which offsets in Kafka that were read together are used. A coordinator that does not
answer delays some of them."""

_NONE: Final[Mapping[str, Mapping[TopicPartition, StoredOffset]]] = {}
"""No polled offsets."""

T = TypeVar("T")
Look = InZooKeeper | ZooKeeperError | GroupRefusedError
"""A group's data in ZooKeeper, or why it cannot be read."""


class Seen(NamedTuple):
    """A mirrored group as it was last read. ``at``: its data in ZooKeeper. ``reading``: its offsets
    and members in both stores."""

    at: InZooKeeper
    mirror: Mirror
    reading: Reading


class Together(NamedTuple):
    """Several groups that were read together. ``found``: each group, or why Kafka's data is
    unknown. ``until``: when the data becomes too old, by ``time.monotonic``."""

    found: dict[str, Seen | BrokerError]
    until: float

    def of(self, group: str) -> Seen | None:
        """Return a group, unless it was not read or the data is too old. Raises BrokerError."""
        found = self.found.get(group)
        if isinstance(found, BrokerError):
            raise found
        return found if time.monotonic() <= self.until else None

    def of_all(self, groups: Iterable[str]) -> dict[str, Seen]:
        """Return the groups among ``groups`` that were read, unless the data is too old."""
        some = groups if time.monotonic() <= self.until else ()
        return {name: one for name in some if isinstance(one := self.found.get(name), Seen)}


class Readings:
    """Reads mirrored groups, and caches what was read."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._below: dict[str, tuple[Mapping[TopicPartition, Node], float]] = {}
        """The groups' znodes below ``offset``, and when they are read again."""
        self._asks = stores.beside()
        """Requests on separate connections, so that no read delays a commit that is about to be
        sent."""
        self.keep_s = 0.0
        """Seconds after which all of a group's data is read again, even if no watch fires."""
        self._known: dict[str, tuple[InZooKeeper, float]] = {}
        """Cached data of groups in ZooKeeper, with watches, and when all of it is read again."""
        self._polled: dict[str, tuple[Mapping[TopicPartition, StoredOffset], float]] = {}
        """Offsets that ``moved`` found to differ from the cached ones, and when it asked."""
        self.unchanged: set[str] = set()
        """Groups whose data in ZooKeeper was as cached when it was last read."""
        self._fired: defaultdict[str, set[str]] = defaultdict(set)
        """The watches of a group that have fired since it was read."""
        self._stored: dict[str, dict[TopicPartition, StoredOffset]] = {}
        """The cached offsets of groups in which Kafka leads."""
        self._answers: dict[int, Mapping[tuple[str, ...], Answered]] = {}
        """The coordinators' last answers about these offsets, by the place of the groups."""

    def fired(self) -> set[str] | None:
        """Return the groups for which a watch has fired since the last call.

        ``None``: the connection was lost in the meantime, so all groups may have changed.
        """
        fired = self._stores.zk.fired()
        if fired is None:
            self._known.clear()
            self._fired.clear()
            return None
        groups: set[str] = set()
        for path in fired:
            group = path.split("/")[2]
            self._fired[group].add(path)
            groups.add(group)
        return groups

    def look(self, groups: Iterable[str]) -> list[Look]:
        """Return groups' data in ZooKeeper. Reads only znodes that may have changed."""
        return list(self._stores.zk.run_all(map(self._look, groups)))

    def look_afresh(self, group: str) -> Look:
        """Return a group's data in ZooKeeper. Reads all of it again."""
        self._known.pop(group, None)
        (found,) = self.look([group])
        return found

    def keep(self, seen: Seen) -> None:
        """Replace a group's cached data with ``seen``, which this process has just read or
        written."""
        at = seen.at
        known = self._known.pop(at.group, None)
        if known is not None and at.watched:
            self._known[at.group] = (at, known[1])
        if seen.mirror.leader is Store.KAFKA:
            self._stored[at.group] = {
                tp: StoredOffset(one.offset, one.leader_epoch, one.metadata)
                for tp, one in seen.reading.kafka.items()
            }
        else:
            self._stored.pop(at.group, None)

    def moved(self, groups: Sequence[str], place: int) -> set[str]:
        """Return the groups whose offsets in Kafka may differ from the cached ones.

        These are the groups with different offsets, and those whose coordinator is not known yet.
        All groups are requested together. ``place``: identifies this batch of groups. The
        coordinators' last answers are kept for each place, and equal answers are not decoded again.
        """
        before = self._answers.pop(place, {})
        if not groups:
            return set()
        began = time.monotonic()
        self._answers[place] = answers = self._stores.kafka.fetch_several(groups, before)
        stored = {name: one for some in answers.values() for name, one in some.offsets.items()}
        moved: set[str] = set()
        for name in groups:
            new, kept = stored.get(name), self._stored.get(name)
            if new is None:
                moved.add(name)
            elif new is not kept and new != kept:
                moved.add(name)
                self._polled[name] = new, began
            else:
                self._stored[name] = new  # one object for both, to save memory
        return moved

    def read(self, group: str) -> Seen:
        """Read a mirrored group without using the cache. Raises GroupRefusedError if it is not
        mirrored."""
        losses = self._stores.zk.losses
        at = self._stores.zk.run(mirror_state.look(group))._replace(losses=losses)
        if at.mirror is None or at.mirror.stopped is not None:
            raise mirror_state.changed(group)
        self._below.pop(group, None)
        return self.complete(at)

    def complete(self, at: InZooKeeper) -> Seen:
        """Read a mirrored group's data in Kafka, and add it to the data in ZooKeeper. Raises
        BrokerError."""
        found = self._complete([at])[at.group]
        if isinstance(found, BrokerError):
            raise found
        return found

    def is_still_in_kafka(
        self,
        group: str,
        before: Mapping[TopicPartition, KafkaOffset],
        new: Mapping[TopicPartition, StoredOffset | None],
    ) -> bool:
        """Return whether a group's offsets in Kafka are unchanged since they were read. Raises
        BrokerError.

        A member may have committed right before it left, after the offsets were read. ``before``:
        the offsets that were read. ``new``: offsets that may be there instead, from a commit that
        was not answered.
        """
        return _is_still(self._asks.fetch(group, new), before, new)

    def still_in_kafka(
        self, seen: Mapping[str, Seen], new: Mapping[str, Mapping[TopicPartition, StoredOffset]]
    ) -> list[str]:
        """Return the groups for which ``is_still_in_kafka`` is true, of those whose coordinator is
        known. All groups are requested together."""
        answers = self._stores.kafka.fetch_several(new, only=new).values()
        stored = {name: one for some in answers for name, one in some.offsets.items()}
        return [
            name
            for name, one in stored.items()
            if _is_still(one, seen[name].reading.kafka, new[name])
        ]

    def complete_together(self, looks: Iterable[InZooKeeper]) -> Together:
        """Read the data of several mirrored groups in Kafka, with few requests.

        If data that concerns several groups cannot be read, nothing is returned. ``complete`` then
        shows which group has a problem.
        """
        began, until = time.monotonic(), inf
        ats, polled = list(looks), dict[str, Mapping[TopicPartition, StoredOffset]]()
        for at in ats:
            offsets, asked = self._polled.pop(at.group, ({}, -inf))
            # Offsets from before a change in ZooKeeper would look like another client's change.
            if began - asked < _FRESH / 2 and at.group in self.unchanged:
                polled[at.group], until = offsets, min(until, asked + _FRESH)
        try:
            return Together(self._complete(ats, polled), min(until, began + _FRESH))
        except ZkUnavailableError:
            raise
        except (BrokerError, ZooKeeperError):
            return Together({}, began)

    def _look(self, name: str) -> Script[Look]:
        now, losses = time.monotonic(), self._stores.zk.losses
        fired = self._fired.pop(name, set())
        at, until = self._known.pop(name, (None, now))
        if at is None or until <= now:
            until = now + self.keep_s * random.uniform(0.5, 1.0)
            script = mirror_state.look(name, True)
        else:
            script = mirror_state.look_again(at, fired)
        found = yield from or_error(script)
        (self.unchanged.add if found is at else self.unchanged.discard)(name)
        if isinstance(found, InZooKeeper) and found is not at:
            found = found._replace(losses=losses)
        if isinstance(found, InZooKeeper) and found.watched:
            self._known[name] = (found, until)
        return found

    def _complete(
        self,
        looks: Iterable[InZooKeeper],
        polled: Mapping[str, Mapping[TopicPartition, StoredOffset]] = _NONE,
    ) -> dict[str, Seen | BrokerError]:
        """Read groups' data in Kafka, except offsets that were just ``polled``. Members are read
        last, so that one which has committed is seen, too."""
        found: dict[str, Seen | BrokerError] = {}
        ats = {at.group: (at, at.mirror) for at in looks if at.mirror is not None}
        known = {name: [*at.offsets, *mirror.values] for name, (at, mirror) in ats.items()}
        kafka: dict[str, dict[TopicPartition, KafkaOffset]] = {}
        others = {name: some for name, some in known.items() if name not in polled}
        each = {**polled, **(self._stores.fetch_each(others) if others else {})}
        read = {name: one for name, one in each.items() if not isinstance(one, BrokerError)}
        names = {tp.topic for name, some in read.items() for tp in (*some, *known[name])}
        topics = self._stores.logs.topics(names) if read else {}
        for name in read:  # its offsets may have been read before a topic was recreated
            agreed = ats[name][1].topics
            if any(agreed.get(topic, one.czxid) != one.czxid for topic, one in topics.items()):
                each |= self._stores.fetch_each({name: known[name]})
        for name, stored in each.items():
            if isinstance(stored, BrokerError):
                found[name] = stored
            else:
                kafka[name] = {tp: KafkaOffset(*one) for tp, one in stored.items()}
        unreadable = self._stores.logs.unreadable
        hidden = self._stores.hidden_topics(names) if kafka else frozenset()
        self._read_below(kafka)
        for name, new in self._stores.kafka.members_of(kafka).items():
            at, mirror = ats[name]
            if isinstance(new, BrokerError):
                found[name] = new
            else:
                own = {tp.topic for tp in (*kafka[name], *known[name])}
                faults = [unreadable[topic] for topic in sorted(own & unreadable.keys())]
                below, odd = readable_at(misplaced_root(name), self._below[name][0].items())
                faults += odd
                both = (at.old, new, at.offsets, kafka[name], topics)
                found[name] = Seen(at, mirror, Reading(*both, hidden, tuple(faults), below))
        return found

    def _read_below(self, groups: Iterable[str]) -> None:
        """Read the znodes of some groups below ``offset``, unless they are cached."""
        now = time.monotonic()
        due = [name for name in groups if name not in self._below or now >= self._below[name][1]]
        found = self._stores.zk.run_all(map(misplaced_offsets, due))
        self._below |= {name: (one, now + BELOW_S) for name, one in zip(due, found, strict=True)}


def or_error(script: Script[T]) -> Script[T | ZooKeeperError | GroupRefusedError]:
    """Run a script for one group. If it fails because of this group alone, return the error."""
    try:
        return (yield from or_refusal(script))
    except (GroupRefusedError, ZooKeeperError) as error:
        return error


def _is_still(
    stored: Mapping[TopicPartition, StoredOffset],
    before: Mapping[TopicPartition, KafkaOffset],
    new: Mapping[TopicPartition, StoredOffset | None],
) -> bool:
    now = {tp: KafkaOffset(*stored[tp]) for tp in new if tp in stored}
    return all(
        now.get(tp) in (before.get(tp), one and KafkaOffset(*one)) for tp, one in new.items()
    )
