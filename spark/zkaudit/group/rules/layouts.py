"""The rules about znodes of other clients, which members of the JVM and of this library ignore or
misread. The audit does not understand them either, and reports only that they exist."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from zkaudit.group.coverage import UNKNOWN
from zkaudit.group.events import Lifetime, Moment
from zkaudit.group.rules.rule import Evidence, Finding, Group, Rule
from zkaudit.group.rules.words import latest
from zkaudit.group.znodes import FOREIGN, IDS, OWNERS, Znode
from zkaudit.text import hex_of
from zkconsumer.admin.ids_lock import PROBE_END
from zkconsumer.core.zookeeper.znodes import decode_registration, registration_writer
from zkconsumer.errors import ZnodeFormatError


@dataclass(slots=True)
class _Claims:
    """The owner znodes of one session for one topic."""

    znode: Znode
    """The first owner znode."""
    begin: Moment
    end: Moment | None = None
    """The last known end."""
    paths: set[str] = field(default_factory=set)
    live: dict[str, Lifetime] = field(default_factory=dict)
    """Live owner znodes by path."""
    shared: bool = False
    """Whether another session owned partitions of the topic at the same time."""


class ForeignOwners(Rule):
    """Finds sessions with owner znodes whose names are not partitions. There is one finding for
    each topic and session. The severity is ``high`` if another session is known to have owned a
    partition of the topic at the same time."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._claims: dict[str, dict[int, _Claims]] = {}
        """Claims by topic and session."""

    def began(self, lifetime: Lifetime) -> Iterable[Finding]:
        """Compare a claim with the live owners of the topic."""
        if lifetime.znode.tree == FOREIGN:
            if lifetime.start is not UNKNOWN and (claims := self._of(lifetime, lifetime.start)):
                claims.live[lifetime.znode.path] = lifetime
                claims.shared |= self._is_shared(lifetime, lifetime.start)
        elif lifetime.znode.tree == OWNERS:
            for session, claims in self._claims.get(lifetime.znode.topic, {}).items():
                if session != lifetime.session:
                    claims.shared |= self.group.any_existed(claims.live.values(), lifetime.start)
        return ()

    def ended(self, lifetime: Lifetime) -> Iterable[Finding]:
        """Record the end of a znode."""
        end = lifetime.end
        if lifetime.znode.tree == FOREIGN and end and (claims := self._of(lifetime, end)):
            claims.shared |= lifetime.start is UNKNOWN and self._is_shared(lifetime, end)
            claims.live.pop(lifetime.znode.path, None)
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

    def _is_shared(self, lifetime: Lifetime, at: Moment) -> bool:
        owners = (
            owner
            for owner in self.group.live.values()
            if owner.znode.tree == OWNERS
            and owner.znode.topic == lifetime.znode.topic
            and owner.session != lifetime.session
        )
        return self.group.any_existed(owners, at)

    def finish(self, end: Moment) -> Iterable[Finding]:
        """Report the claims of each session."""
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
        path, end = claims.znode.path, self.group.last_end(claims.end, claims.live.values())
        return Finding(
            severity="high" if claims.shared else "medium",
            kind="owner in another layout",
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


@dataclass(slots=True)
class _Registrations:
    """Registrations that are unreadable for the same reason."""

    first: Lifetime
    too_large: bool
    """Whether they are only known to exceed a limit of this library."""
    count: int = 0
    end: Moment | None = None
    """The last known end."""
    shared: bool = False
    """Whether a member with a readable registration was registered at the same time."""


class UnreadableRegistrations(Rule):
    """Finds registrations that members cannot read. There is one finding for each kind of fault.
    The severity is ``high`` if another member is known to have been registered at the same time,
    because it could not rebalance."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._odd: dict[tuple[str, str | None], _Registrations] = {}
        """Unreadable registrations by reason and by the client that wrote them."""
        self._live: dict[str, tuple[Lifetime, _Registrations]] = {}
        """Registrations that have not ended, by path."""
        self._readable: dict[str, Lifetime] = {}

    def began(self, lifetime: Lifetime) -> Iterable[Finding]:
        """Try to read a registration."""
        if lifetime.znode.tree != IDS:
            return ()
        path, data = lifetime.znode.path, lifetime.data or b""
        try:
            topics = decode_registration(path, data).topics
        except ZnodeFormatError as error:
            key = error.reason, registration_writer(data)
            odd = self._odd.setdefault(key, _Registrations(lifetime, error.too_large))
            odd.count += 1
            self._live[path] = lifetime, odd
            odd.shared |= self.group.any_existed(self._readable.values(), lifetime.start)
        else:
            if topics and not path.endswith(PROBE_END):  # zkmigrate's never rebalance
                self._readable[path] = lifetime
                for other, odd in self._live.values():
                    odd.shared |= self.group.any_existed([other], lifetime.start)
        return ()

    def ended(self, lifetime: Lifetime) -> Iterable[Finding]:
        """Record the end of a registration."""
        if lifetime.znode.tree == IDS:
            path = lifetime.znode.path
            self._readable.pop(path, None)
            if path in self._live:
                _, odd = self._live.pop(path)
                odd.end = lifetime.end
        return ()

    def finish(self, end: Moment) -> Iterable[Finding]:
        """Return a finding for each kind of fault."""
        for (reason, writer), odd in self._odd.items():
            yield self._finding(reason, writer, odd)

    def _finding(self, reason: str, writer: str | None, odd: _Registrations) -> Finding:
        member, group = odd.first.znode.name, self.group.name
        start = odd.first.start
        assert isinstance(start, Moment)
        live = (lifetime for lifetime, its in self._live.values() if its is odd)
        end = self.group.last_end(odd.end, live)
        text = f"The registration of {member} in group {group} {reason}"
        text += f" (written by {writer}). " if writer else ". "
        if odd.count > 1:
            text += f"{odd.count} registrations have this fault. "
        text += "It is unknown which topics it means."
        is_harmful = odd.shared and not odd.too_large
        if odd.too_large:
            text += " zkconsumer does not read it, but members of the JVM may."
        elif is_harmful:
            text += " Other members were registered meanwhile: members of the JVM fail to rebalance"
            text += " as long as there is such a registration."
        return Finding(
            severity="high" if is_harmful else "info",
            kind="unreadable registration",
            basis="proven",
            sentence=text,
            evidence=(
                Evidence("registrations", start.zxid, None, odd.first.session, "registered"),
            ),
            zxid=start.zxid,
            time=start.time,
            end_zxid=None if end is None else end.zxid,
            end_time=None if end is None else end.time,
            member=member,
            session=odd.first.session,
        )
