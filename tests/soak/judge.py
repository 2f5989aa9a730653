"""The rules of a run. No IO: the input is a ``History``, the output are violations and counts.

Repeats are allowed if a member could not store its deliveries: it was killed, or its session ended.
On the coordinator it may also have been frozen, removed or cut off. A **break** is such a time of
one member. Messages delivered from one commit interval before a break to its end may be repeated.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.soak.history import Claim, History, Message
from tests.soak.kinds import KINDS

LEASE = 2 / 3
"""Part of the session timeout for which a member may rely on one response."""
SLACK = 1.0
"""Seconds by which a busy machine delays commits and pings."""
CLOCK = 0.05
"""The longest time in seconds between a transaction's time stamp and its client's next action."""
HEAL = 10.0
"""Seconds after the last fault after which no member is idle and no partition is unowned."""
WATCHED = 1.0
"""The shortest window in seconds in which silence counts."""
SHOWN = 40
"""Number of violations of one rule that a result lists."""

RULES = {
    "lost": "an acknowledged message was not delivered",
    "wrong message": "the message delivered at this offset is not the acknowledged one",
    "repeated": "a message was delivered again without a kill or expiry, or from before the last "
    "commit interval",
    "two deliverers": "a member delivered messages of a partition that another one had claimed, "
    "for longer than its lease",
    "owner without a session": "an owner znode outlived its member's registration",
    "offset lowered": "a committed offset went down",
    "foreign commit": "a member stored an offset of a partition that it did not own",
    "idle member": "a live member delivered nothing from 10 s after the last fault",
    "unowned partition": "no member delivered a partition's messages from 10 s after the last "
    "fault",
    "hung": "a member had not left within its documented time",
    "audit": "zkaudit found what no member may do",
    "resources": "memory, descriptors, threads or watches grew by more than 5 % in a long run",
}

FINDINGS = frozenset(
    {
        "zombie commit",
        "orphan commit",
        "tool write",
        "lost messages",
        "offset regression",
        "foreign release",
        "one consumer id on two sessions",
        "orphan partition",
        "member without its share",
    }
)
"""Kinds of zkaudit findings that a zkconsumer member must never cause. ``two deliverers`` allows
the time of the lease, which zkaudit reports as an "overlapping delivery"."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated rule."""

    rule: str
    text: str
    at: float = 0.0
    member: str = ""
    partition: int = -1


@dataclass(frozen=True, slots=True)
class Break:
    """A time in which a member could not store its deliveries."""

    began: float
    ended: float
    why: str


def judge(history: History, grown: Sequence[str] = ()) -> dict[str, Any]:
    """All violations, the ones to show as data, and the counts.

    ``grown`` is the result of ``tests.soak.resources.grown`` for a long run.
    """
    late, in_hand, in_lease = two_deliverers(history)
    repeats, counted = repeated(history, in_hand)
    found = [
        *lost(history),
        *wrong(history),
        *repeats,
        *late,
        *owners_without_session(history),
        *lowered(history),
        *foreign_commits(history),
        *idle_members(history),
        *unowned(history),
        *hung(history),
        *audited(history),
        *(Violation("resources", text) for text in grown),
    ]
    kept: Counter[str] = Counter()
    shown = []
    for one in found:
        kept[one.rule] += 1
        if kept[one.rule] <= SHOWN:
            shown.append(asdict(one))
    return {
        "violations": shown,
        "violations_by_rule": dict(kept),
        "counts": {
            "acknowledged": sum(map(len, history.acked.values())),
            "delivered": sum(map(len, history.delivered.values())),
            "repeated": sum(counted.values()),
            "repeated by the original consumer": counted["jvm"],
            "late but unacknowledged": len(in_hand),
            "late within the lease": in_lease,
            "stored offsets": history.commits,
            "members": len(history.lives),
            "ended by themselves": sum(life.how == "failed" for life in history.lives),
        },
        "breaks_of_repeats": dict(counted),
    }


def _theirs(history: History) -> set[str]:
    """Members of the original consumer, which are not judged."""
    return {life.member for life in history.lives if not life.ours}


# -- messages --------------------------------------------------------------------------------------


def missing(history: History) -> list[tuple[int, Message]]:
    """Messages that were acknowledged and not delivered."""
    found = []
    for partition, messages in history.acked.items():
        seen = {message.offset for message in history.delivered.get(partition, ())}
        found += [(partition, m) for offset, m in messages.items() if offset not in seen]
    return found


def lost(history: History) -> list[Violation]:
    """Rule ``lost``."""
    return [
        Violation(
            "lost",
            f"partition {partition} offset {message.offset}, acknowledged at {message.at:.3f}",
            message.at,
            partition=partition,
        )
        for partition, message in missing(history)
    ]


def wrong(history: History) -> list[Violation]:
    """Rule ``wrong message``."""
    return [
        Violation(
            "wrong message",
            f"partition {partition} offset {m.offset}: {m.number}, not {acked[m.offset].number}",
            m.at,
            m.member,
            partition,
        )
        for partition, acked in history.acked.items()
        for m in history.delivered.get(partition, ())
        if m.offset in acked and acked[m.offset].number != m.number
    ]


def breaks(history: History) -> dict[str, list[Break]]:
    """The breaks of each member."""
    found: dict[str, list[Break]] = defaultdict(list)
    lease = history.session * LEASE
    for life in history.lives:
        # A server may notice it much later, for example if the server itself was away.
        if life.how == "killed" and life.ended is not None:
            found[life.member].append(Break(life.ended, life.ended, "kill"))
    if KINDS[history.kind].member == "coordinator":
        for fault in history.faults:
            if fault.kind in ("kill", "pause", "expiry", "silence", "ambiguous write"):
                for member in fault.members:
                    end = fault.ended + history.session + SLACK
                    found[member].append(Break(fault.began, end, fault.kind))
        outages = [(fault.began, fault.ended) for fault in history.faults if fault.kind == "broker"]
        for one in history.expelled:
            began = _unheard(one.at, outages, history.session)
            found[one.member].append(Break(began, one.at, "expelled"))
        for life in history.lives:  # deliveries that it had not stored when it had to leave
            for first, last in outages:
                if life.how == "left" and first <= (life.ended or 0.0) <= last + SLACK:
                    found[life.member].append(Break(first, life.ended, "left without coordinator"))
        return found
    closed = [
        (fault.began, fault.ended, member)
        for fault in history.faults
        if fault.kind == "expiry"
        for member in fault.members
    ]
    outages = [
        (fault.began, fault.ended)
        for fault in history.faults
        if fault.kind in ("leader", "ensemble")
    ]
    for one in history.registrations:
        if one.ended is None or one.how == "released":
            continue
        if one.how == "closed":
            if any(
                member == one.member and began - SLACK <= one.ended <= ended + SLACK
                for began, ended, member in closed
            ):
                found[one.member].append(Break(one.ended, one.ended + lease, "expiry"))
            continue
        began = _unheard(one.ended, outages, history.session)
        found[one.member].append(Break(began, one.ended + lease, one.how))
    return found


def _unheard(ended: float, outages: list[tuple[float, float]], session: float) -> float:
    """The latest time at which a server can last have heard from a member whose session it ended at
    ``ended``. That is one session timeout before, and longer ago if the server itself was away."""
    began = ended - session - SLACK
    for first, last in sorted(outages, reverse=True):
        if first <= ended and last + SLACK >= began:
            began = min(began, first - session)
    return began


def repeated(
    history: History, in_hand: Collection[Message]
) -> tuple[list[Violation], Counter[str]]:
    """Rule ``repeated``, and the number of repeats that each kind of break explains.

    ``in_hand`` is from ``two_deliverers``. A pause explains repeats that follow it directly.
    """
    by_member, theirs = breaks(history), _theirs(history)
    pauses = [fault for fault in history.faults if fault.kind == "pause"]
    woken = {
        message
        for message in in_hand
        for pause in pauses
        if message.member in pause.members
        and pause.ended - CLOCK <= message.at <= pause.ended + SLACK
    }
    counted: Counter[str] = Counter()
    found = []
    before = history.commit_interval + SLACK
    for partition, messages in history.delivered.items():
        first: dict[int, Message] = {}
        for message in messages:
            earlier = first.setdefault(message.offset, message)
            if earlier is message:
                continue
            first[message.offset] = message
            if not theirs.isdisjoint((earlier.member, message.member)):
                counted["jvm"] += 1
                continue
            why = next(
                (
                    one.why
                    for one in by_member.get(earlier.member, ())
                    if one.began - before <= earlier.at <= one.ended
                    and message.at >= one.began - before
                ),
                None,
            ) or next(
                (  # it continued within its lease while the next owner delivered the same
                    one.why
                    for one in by_member.get(message.member, ())
                    if message.member != earlier.member and one.began <= message.at <= one.ended
                ),
                None,
            )
            if why is None and message in woken:
                why = "pause"
            counted[why or "none"] += 1
            if why is None:
                found.append(
                    Violation(
                        "repeated",
                        f"partition {partition} offset {message.offset}: by {earlier.member} at "
                        f"{earlier.at:.3f} and by {message.member} at {message.at:.3f}",
                        message.at,
                        message.member,
                        partition,
                    )
                )
    return found, counted


def two_deliverers(history: History) -> tuple[list[Violation], list[Message], int]:
    """Rule ``two deliverers``. Also returns the messages that were unacknowledged before a pause,
    and the number of late messages within the lease."""
    lease = history.session * LEASE
    claims: dict[int, list[Claim]] = defaultdict(list)
    for claim in history.claims:
        claims[claim.partition].append(claim)
    unknown = {m for f in history.faults if f.kind == "full disk" for m in f.members}
    if KINDS[history.kind].member != "coordinator":
        unknown = set()
    unknown |= _theirs(history)
    found: list[Violation] = []
    in_hand: list[Message] = []
    in_lease = 0
    for partition, mine in claims.items():
        mine.sort(key=lambda claim: claim.began)
        begins = [claim.began for claim in mine]
        last_of: dict[str, Message] = {}
        for message in history.delivered.get(partition, ()):
            previous = last_of.get(message.member)
            last_of[message.member] = message
            if message.member in unknown:
                continue
            at = bisect_right(begins, message.at)
            own = next((i for i in range(at - 1, -1, -1) if mine[i].member == message.member), None)
            if own is None:
                continue
            others = [c for c in mine[own + 1 : at] if c.member != message.member]
            late = message.at - others[0].began if others else 0.0
            if late <= CLOCK:
                continue
            # A stream had one unacknowledged message when its process was stopped.
            if previous is None or previous.at < others[0].began:
                in_hand.append(message)
            elif late <= lease:
                in_lease += 1
            else:
                found.append(
                    Violation(
                        "two deliverers",
                        f"partition {partition} offset {message.offset}: {message.member} "
                        f"delivered it {late:.1f} s after {others[0].member} had claimed the "
                        "partition",
                        message.at,
                        message.member,
                        partition,
                    )
                )
    return found, in_hand, in_lease


# -- ZooKeeper and Kafka ---------------------------------------------------------------------------


def owners_without_session(history: History) -> list[Violation]:
    """Rule ``owner without a session``: an owner znode needs its member's registration with the
    same session."""
    if KINDS[history.kind].member == "coordinator":
        return []
    found, theirs = [], _theirs(history)
    registered: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for one in history.registrations:
        end = float("inf") if one.ended is None else one.ended
        registered[one.member, one.session].append((one.began, end))
    for claim in history.claims:
        if claim.member in theirs:
            continue
        end = float("inf") if claim.ended is None else claim.ended
        if not any(
            began - CLOCK <= claim.began and end <= ended + CLOCK
            for began, ended in registered[claim.member, claim.session]
        ):
            found.append(
                Violation(
                    "owner without a session",
                    f"partition {claim.partition}: owner {claim.member} from {claim.began:.3f} "
                    f"was not registered by session 0x{claim.session & (1 << 64) - 1:x} all along",
                    claim.began,
                    claim.member,
                    claim.partition,
                )
            )
    return found


def lowered(history: History) -> list[Violation]:
    """Rule ``offset lowered``."""
    theirs = _theirs(history)
    return [
        Violation(
            "offset lowered",
            f"partition {one.partition}: {one.before} -> {one.after} by {one.member or 'unknown'}",
            one.at,
            one.member,
            one.partition,
        )
        for one in history.lowered
        if one.member not in theirs
    ]


def foreign_commits(history: History) -> list[Violation]:
    """Rule ``foreign commit``. The original consumer may delete another member's owner znode. That
    member commits until it notices, unless another member has claimed the partition."""
    theirs = _theirs(history)
    return [
        Violation(
            "foreign commit",
            f"partition {one.partition}: by {one.member or 'no member'}; "
            f"the owner was {one.owner or 'no member'}",
            one.at,
            one.member,
            one.partition,
        )
        for one in history.foreign
        if one.member not in theirs and not (not one.owner and one.deleter in theirs)
    ]


def audited(history: History) -> list[Violation]:
    """Rule ``audit``."""
    theirs = _theirs(history)
    return [
        Violation("audit", f"{one.kind}: {one.sentence}", member=one.member)
        for one in history.findings
        if one.kind in FINDINGS and one.member not in theirs
    ]


# -- members at rest -------------------------------------------------------------------------------


def windows(history: History) -> list[tuple[float, float]]:
    """Times in which the group must be healthy."""
    return [
        (began + HEAL, ended) for began, ended in history.quiet if ended - began >= HEAL + WATCHED
    ]


def idle_members(history: History) -> list[Violation]:
    """Rule ``idle member``."""
    times: dict[str, list[float]] = defaultdict(list)
    for messages in history.delivered.values():
        for message in messages:
            times[message.member].append(message.at)
    for each in times.values():
        each.sort()
    delivered = [[m.at for m in each] for each in history.delivered.values()]
    stuck = {window for window, _, _ in waiting(history)}
    found = []
    for began, ended in windows(history):
        if (began, ended) not in stuck and not all(
            _between(each, began, ended) for each in delivered
        ):
            continue  # there was nothing to deliver, because the brokers accepted nothing
        for life in history.lives:
            if not life.ours or life.began > began - HEAL or (life.ended or ended) < ended:
                continue
            mine = times[life.member]
            at = bisect_right(mine, began)
            if at == len(mine) or mine[at] > ended:
                found.append(
                    Violation(
                        "idle member",
                        f"{life.member} delivered nothing from {began:.3f} to {ended:.3f}",
                        began,
                        life.member,
                    )
                )
    return found


def unowned(history: History) -> list[Violation]:
    """Rule ``unowned partition``."""
    return [
        Violation(
            "unowned partition",
            f"partition {partition}: {count} messages were written and not "
            f"delivered from {began:.3f} to {ended:.3f}",
            began,
            partition=partition,
        )
        for (began, ended), partition, count in waiting(history)
    ]


def waiting(history: History) -> list[tuple[tuple[float, float], int, int]]:
    """Windows without a delivery from a partition, and the number of messages that arrived too late
    for their window. (A message may be delivered before its producer gets the acknowledgement.)"""
    found = []
    for partition, acked in history.acked.items():
        first: dict[int, float] = {}
        for message in history.delivered.get(partition, ()):
            first.setdefault(message.offset, message.at)
        got = [message.at for message in history.delivered.get(partition, ())]
        for began, ended in windows(history):
            if _between(got, began, ended):
                continue
            late = sum(
                began <= message.at <= ended - WATCHED / 2
                and first.get(message.offset, ended) >= ended
                for message in acked.values()
            )
            if late:
                found.append(((began, ended), partition, late))
    return found


def _between(times: Sequence[float], began: float, ended: float) -> int:
    """Number of the ordered times between ``began`` and ``ended``."""
    return bisect_right(times, ended) - bisect_left(times, began)


def hung(history: History) -> list[Violation]:
    """Rule ``hung``."""
    return [
        Violation(
            "hung", f"{life.member} did not leave in its time", life.ended or 0.0, life.member
        )
        for life in history.lives
        if life.how == "hung"
    ]
