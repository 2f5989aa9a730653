"""A member's copy of its group's data, and when it must read it again. Pure.

After a change of the group, every member reads it again. Most of the group has not changed, and
the member can detect that without reading it:

- Registrations: the list of members is read each time, and its stat counts the creations and
  deletions of children. Each name that appeared or disappeared counts at least one. A replaced
  registration counts two, with the same name. So if the count has grown exactly by the number of
  names that appeared or disappeared, all other registrations are unchanged.
  After a reconnection that proves nothing, because a restored server counts again. Then the names,
  the count and the last change's transaction must be the same.
- Topics and the list of brokers: a watch was left on them. They have not changed as long as the
  watch has not fired and its connection exists.

Periodic reads compensate for lost watch events. They also find a registration whose data was
rewritten in place, which no list shows. They read the member's own registration each time and the
others in rotation (``ROTATION``), so that a large idle group is not read completely each time.

Owned by the machine's thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from zkconsumer.core.zookeeper.ops import Listing, Node
from zkconsumer.core.zookeeper.znodes import BROKER_IDS, topic_path

_COUNTER = 1 << 32
#: Periodic readings in which each registration is read once.
ROTATION = 10


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """Znodes from one pass of reads.

    ``brokers``: by name, ``None`` if unknown. ``registrations``: by consumer id, for the members in
    ``listing`` whose registrations still existed when they were read. ``topics``: existing topics
    by name. ``reconnected``: the connection has been lost since then.
    """

    brokers: Mapping[str, Node] | None = None
    listing: Listing | None = None
    registrations: Mapping[str, Node] = field(default_factory=dict)
    topics: Mapping[str, Node] = field(default_factory=dict)
    reconnected: bool = False

    def registrations_still(self, now: Listing) -> Mapping[str, Node]:
        """Return the ``registrations`` that have not changed, according to a later list of
        members."""
        before = self.listing
        if before is None or before.czxid != now.czxid:
            return {}
        names = frozenset(now.names)
        moved = len(names.symmetric_difference(before.names))
        if (now.changes - before.changes) % _COUNTER != moved:
            return {}
        if self.reconnected and (moved or now.pzxid != before.pzxid):
            return {}
        return {name: node for name, node in self.registrations.items() if name in names}


#: Of one that has read nothing yet.
NOTHING = Known()


class Knowledge:
    """The znodes that member ``own`` need not read in its next ``LoadView``. It must receive every
    event, in order."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._rotation = 0
        self._known = NOTHING
        #: Since the view under way, or the last one, was asked for.
        self._invalidated: set[str] = set()
        self._reconnected = False
        self._refresh_forced = False

    def invalidate(self, path: str) -> None:
        """Require ``path`` to be read again, because a watch on it fired."""
        self._invalidated.add(path)

    def reconnected(self) -> None:
        """Require all watches to be set again, because a new connection may have lost them. Also
        read all registrations again if their list has changed, because a restored server may have
        reused the list's change count."""
        self._reconnected = True

    def force_refresh(self) -> None:
        """Make the next ``LoadView`` the periodic one, which also reads unchanged znodes."""
        self._refresh_forced = True

    def forget(self) -> None:
        """Forget everything, because the session has ended."""
        self._known = NOTHING
        self._invalidated.clear()
        self._reconnected = self._refresh_forced = False

    def ask(self) -> Known:
        """Return the data that the next ``LoadView`` need not read."""
        known = self._known
        if self._refresh_forced:
            self._rotation = (self._rotation + 1) % ROTATION
            known = replace(known, registrations=self._untouched(known.registrations))
        if self._reconnected or self._refresh_forced:
            known = replace(known, brokers=None, topics={})
        if self._reconnected:
            known = replace(known, reconnected=True)
        if BROKER_IDS in self._invalidated:
            known = replace(known, brokers=None)
        if gone := {topic for topic in known.topics if topic_path(topic) in self._invalidated}:
            kept = {topic: node for topic, node in known.topics.items() if topic not in gone}
            known = replace(known, topics=kept)
        self._known = known
        self._invalidated.clear()
        self._reconnected = self._refresh_forced = False
        return known

    def _untouched(self, registrations: Mapping[str, Node]) -> dict[str, Node]:
        """Return the registrations that the rotation does not read this time."""
        return {
            name: node
            for name, node in registrations.items()
            if name != self._own and (sum(name.encode()) + self._rotation) % ROTATION
        }

    def learned(self, known: Known) -> None:
        """Record a view that was read."""
        self._known = known
