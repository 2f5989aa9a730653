"""The rule about owners whose znodes have another client's layout.

Members of the JVM and of this library ignore such znodes, so both may read the same partitions. The
audit does not understand them either: it only says that they are there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from zkaudit.group.coverage import UNKNOWN
from zkaudit.group.events import Lifetime, Moment
from zkaudit.group.rules.rule import Evidence, Finding, Group, Rule
from zkaudit.group.rules.words import hex_of, latest
from zkaudit.group.znodes import FOREIGN, OWNERS, Znode

KIND: Final = "owner in another layout"


@dataclass(slots=True)
class _Claims:
    """The owner znodes of one session for one topic."""

    znode: Znode
    """The first."""
    begin: Moment
    end: Moment | None = None
    """The last that is known."""
    paths: set[str] = field(default_factory=set)
    live: set[str] = field(default_factory=set)
    shared: bool = False
    """Whether another session owned the topic meanwhile."""


class ForeignOwners(Rule):
    """One finding for each topic and session with owner znodes that are not named like partitions.
    ``high`` if another session owned the topic meanwhile, as far as both times are known.
    """

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._claims: dict[str, dict[int, _Claims]] = {}
        """By topic and session."""

    def began(self, lifetime: Lifetime) -> Iterable[Finding]:
        """Compare with the live owners of the topic."""
        if lifetime.znode.tree == FOREIGN:
            if lifetime.start is not UNKNOWN and (claims := self._of(lifetime, lifetime.start)):
                claims.live.add(lifetime.znode.path)
                claims.shared |= self._is_shared(lifetime)
        elif lifetime.znode.tree == OWNERS:
            for session, claims in self._claims.get(lifetime.znode.topic, {}).items():
                claims.shared |= bool(claims.live) and session != lifetime.session
        return ()

    def ended(self, lifetime: Lifetime) -> Iterable[Finding]:
        """Note the end of a znode."""
        end = lifetime.end
        if lifetime.znode.tree == FOREIGN and end and (claims := self._of(lifetime, end)):
            claims.shared |= lifetime.start is UNKNOWN and self._is_shared(lifetime)
            claims.live.discard(lifetime.znode.path)
            time = latest(end.time, None if claims.end is None else claims.end.time)
            claims.end = Moment(end.zxid, end.idx, time)
        return ()

    def _of(self, lifetime: Lifetime, at: Moment) -> _Claims | None:
        znode, session = lifetime.znode, lifetime.session
        if session is None:
            return None
        of_topic = self._claims.setdefault(znode.topic, {})
        claims = of_topic.setdefault(session, _Claims(znode, at))
        claims.paths.add(znode.path)
        return claims

    def _is_shared(self, lifetime: Lifetime) -> bool:
        return any(
            owner.znode.tree == OWNERS
            and owner.znode.topic == lifetime.znode.topic
            and owner.session != lifetime.session
            and self.group.exists(owner)
            for owner in self.group.live.values()
        )

    def finish(self, end: Moment) -> Iterable[Finding]:
        """Report what was claimed."""
        for topic, of_topic in self._claims.items():
            for session, claims in of_topic.items():
                yield self._finding(topic, session, claims)

    def _finding(self, topic: str, session: int, claims: _Claims) -> Finding:
        what = "."
        if claims.shared:
            what = (
                ", and one of them owned partitions of this topic meanwhile: both may have read "
                "the same messages."
            )
        path, end = claims.znode.path, None if claims.live else claims.end
        return Finding(
            severity="high" if claims.shared else "medium",
            kind=KIND,
            basis="proven",
            sentence=f"Session {hex_of(session)} claimed {len(claims.paths)} partitions of topic "
            f"{topic} of group {self.group.name} in another client's layout ({path}). Members of "
            f"the JVM and of zkconsumer ignore such owners{what}",
            evidence=(Evidence("registrations", claims.begin.zxid, None, session, path),),
            zxid=claims.begin.zxid,
            time=claims.begin.time,
            end_zxid=None if end is None else end.zxid,
            end_time=None if end is None else end.time,
            topic=topic,
            partition=claims.znode.partition,
            session=session,
        )
