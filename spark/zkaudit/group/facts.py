"""Facts outside a group that rules need. They are the same for all groups of a history."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from zkaudit.group.coverage import Coverage
from zkaudit.group.events import Act, Event, Moment, Shown
from zkaudit.group.subscriptions import topics_of_filter
from zkaudit.group.znodes import BROKER_PATH, TOPIC_PATH, Znode
from zkconsumer.core.zookeeper.znodes import decode_topic
from zkconsumer.errors import ZnodeFormatError


class Opened:
    """The transaction that opened each session. Uses 16 bytes per session, as there may be
    millions.

    Args:
        sessions: pairs of a session and the zxid at which it was opened.
    """

    def __init__(self, sessions: Iterable[tuple[int, int]] = ()) -> None:
        pairs = sorted(sessions)
        self._sessions = array("q", (session for session, _ in pairs))
        self._zxids = array("q", (zxid for _, zxid in pairs))

    def zxid(self, session: int | None) -> int | None:
        """Return the transaction that opened a session; ``None`` if the logs do not show it."""
        if session is None:
            return None
        place = bisect_left(self._sessions, session)
        if place == len(self._sessions) or self._sessions[place] != session:
            return None
        return self._zxids[place]


class TopicEvent(NamedTuple):
    """An operation on a topic's znode. An operation that is known only from a snapshot has the zxid
    of the write, and the snapshot's segment."""

    chroot: str
    topic: str
    zxid: int
    idx: int
    segment: int
    time: int | None
    act: Act
    data: bytes | None


class Partition(NamedTuple):
    """A partition, from its topic's znode."""

    zxid: int
    """The oldest transaction that shows it."""
    time: int | None
    is_created: bool
    """Whether that transaction created it."""
    gone_zxid: int | None = None
    """The transaction that deleted its topic, if it does not exist at the end."""
    deleted_zxid: int | None = None
    """The last transaction that deleted a topic of this name."""


class Topics(dict[tuple[str, str], Mapping[int, Partition]]):
    """The partitions of each topic, by chroot and topic."""

    def __init__(self, partitions: Mapping[tuple[str, str], Mapping[int, Partition]] = {}) -> None:
        super().__init__(partitions)
        self._names: dict[str, list[str]] = {}
        self._matched: dict[tuple[str, str, str], Sequence[str]] = {}

    def matching(self, chroot: str, pattern: str, regex: str) -> Sequence[str]:
        """Return the topics below a chroot that a filter matches."""
        if not self._names:
            for place, topic in self:
                self._names.setdefault(place, []).append(topic)
        key = chroot, pattern, regex
        if key not in self._matched:
            self._matched[key] = topics_of_filter(pattern, regex, self._names.get(chroot, []))
        return self._matched[key]


def topics_of(events: Iterable[TopicEvent]) -> Topics:
    """Return the partitions of all topics. A recreated topic has only its latest partitions, a
    deleted topic those that it had until its deletion."""
    place = attrgetter("chroot", "topic")
    ordered = sorted(events, key=lambda event: event[:5])
    by_topic = {name: _partitions(list(group)) for name, group in groupby(ordered, place)}
    return Topics({name: partitions for name, partitions in by_topic.items() if partitions})


def _partitions(events: list[TopicEvent]) -> dict[int, Partition]:
    deleted = max((event.zxid for event in events if event.act is Act.DELETE), default=None)
    written = max((event.zxid for event in events if event.act is not Act.DELETE), default=0)
    gone = deleted if deleted is not None and deleted > written else None
    partitions: dict[int, Partition] = {}
    segment = -1
    for event in events:
        # If the data before it is known too, the transaction added the partitions that are new.
        created = event.act is Act.CREATE or event.segment == segment
        segment = event.segment
        if event.act is Act.DELETE or (gone is None and event.zxid < (deleted or 0)):
            continue
        for number in _numbers(event):
            partition = Partition(event.zxid, event.time, created, gone, deleted)
            partitions.setdefault(number, partition)
    return partitions


def _numbers(event: TopicEvent) -> Iterable[int]:
    try:
        return decode_topic(event.topic, event.data or b"")
    except ZnodeFormatError:
        return ()


@dataclass(frozen=True, slots=True)
class Facts:
    """The data of a history that concern all groups, such as topics and brokers."""

    end: Moment = field(default_factory=partial(Moment, 0, 0))
    """The last transaction of the history."""
    opened: Opened = field(default_factory=Opened)
    brokers: Mapping[int, str] = field(default_factory=dict)
    """Id of the broker that registered in each session of a broker."""
    topics: Topics = field(default_factory=Topics)
    known_us: int | None = None
    """Time of the transaction from which on all ephemeral znodes of the last segment are known;
    ``None`` if this is the first transaction, or if they are never known."""

    def partition(self, znode: Znode) -> Partition | None:
        """Return the partition to which an owner or offset znode belongs, if its topic is known."""
        partitions = self.topics.get((znode.chroot, znode.topic))
        if partitions is None or znode.partition is None:
            return None
        return partitions.get(znode.partition)


_BROKER: Final = re.compile(BROKER_PATH)
_TOPIC: Final = re.compile(TOPIC_PATH)


class FactsReader:
    """Collects the facts of a history from its events, in any order.

    Args:
        coverage: the segments of the history.
    """

    def __init__(self, coverage: Coverage) -> None:
        self._coverage = coverage
        self._opened: dict[int, int] = {}
        self.brokers: dict[int, set[str]] = {}
        """Paths of the brokers that each session registered."""
        self._topics: dict[tuple[str, int, int], TopicEvent] = {}
        self._shown: dict[tuple[str, int, int], TopicEvent] = {}

    def open(self, session: int, zxid: int) -> None:
        """Add a transaction that opened a session."""
        self._opened[session] = min(zxid, self._opened.get(session, zxid))

    def read(self, event: Event) -> None:
        """Add an operation. Operations on other znodes than those of brokers and topics are
        ignored."""
        path = event.path or ""
        if topic := _TOPIC.search(path):
            segment = self._coverage.segment(event.zxid)
            self._topics[path, event.zxid, event.idx] = TopicEvent(
                topic[1], topic[2], event.zxid, event.idx, segment, event.time, event.act,
                event.data,
            )  # fmt: skip
        elif event.act is Act.CREATE:
            self._name(path, event.session)

    def show(self, shown: Shown) -> None:
        """Add a znode from a snapshot."""
        if topic := _TOPIC.search(shown.path):
            act = Act.CREATE if shown.czxid == shown.mzxid else Act.SET
            segment = self._coverage.segment(shown.zxid + 1)
            self._shown[shown.path, shown.mzxid, segment] = TopicEvent(
                topic[1], topic[2], shown.mzxid, 0, segment, shown.mtime, act, shown.data
            )
        else:
            self._name(shown.path, shown.session)

    def _name(self, path: str, session: int) -> None:
        if _BROKER.search(path):
            self.brokers.setdefault(session, set()).add(path)

    def events(self) -> list[TopicEvent]:
        """Return the operations on topics. Operations missing in the logs are taken from
        snapshots."""
        logged = {key[:2] for key in self._topics}
        shown = (event for key, event in self._shown.items() if key[:2] not in logged)
        return [*self._topics.values(), *shown]

    def facts(self, end: Moment, known_us: int | None = None) -> Facts:
        """Return the facts. ``end``: the last transaction; ``known_us``: as in ``Facts``."""
        names = {
            session: min(path.rpartition("/")[2] for path in paths)
            for session, paths in self.brokers.items()
        }
        opened = Opened(self._opened.items())
        return Facts(end, opened, names, topics_of(self.events()), known_us)
