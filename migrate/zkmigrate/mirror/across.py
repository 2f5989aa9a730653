"""Keeps the offsets of groups in another cluster in step, and hands groups over to it.

The group's own cluster leads until ``cut_over``. Nothing is copied back. Each commit to the other
cluster is permitted right before it is sent, like those of ``mirroring``: the group's offsets and
topics there, its record and the lease must not have changed. The coordinator there refuses it as
soon as the group has members. After a cut-over the record says so, and nothing is written.

One thread uses an ``Across``.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from threading import Event
from typing import Final, NamedTuple, TypeVar

from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.cluster_view import TopicView
from zkconsumer.core.zookeeper.scripts.common import Script
from zkconsumer.errors import (
    BrokerError,
    GroupActiveError,
    LeaderUnavailableError,
    ZkUnavailableError,
    ZooKeeperError,
)
from zkmigrate.apply import guard, ownership
from zkmigrate.apply.outcome import Outcome, Result, by_table, not_read
from zkmigrate.apply.permission import (
    MIRROR_PERMISSIONS_END_S,
    MIRROR_PERMITTED_S,
    boottime,
    check_accepted,
)
from zkmigrate.errors import GroupInUseError, GroupRefusedError, check_members, in_use, refused
from zkmigrate.formats.proofs_file import Asked
from zkmigrate.mirror.step import HANDED_OVER, IN_STEP, STANDBY, Lateness, Step
from zkmigrate.model import STOPPED, GroupState, KafkaOffset, Record, Store
from zkmigrate.plan.clusters.across import (
    Copy,
    Why,
    copy_in,
    in_step,
    lag,
    next_copy,
    obstacle_to,
    positions,
)
from zkmigrate.plan.clusters.translation import Proof, Translation
from zkmigrate.plan.table import Action
from zkmigrate.plan.values import Problem
from zkmigrate.reasons import Reason
from zkmigrate.stores import mirror_state, record
from zkmigrate.stores.contents import OtherCluster
from zkmigrate.stores.group_states import read_states
from zkmigrate.stores.sessions import Stores
from zkmigrate.stores.translator import Translator
from zkmigrate.text import shown

T = TypeVar("T")
CUT_OVER: Final = "cut-over --to-cluster"
START: Final = "the new program may start in the other cluster"
_SOURCE: Final = "source"
_TARGET: Final = "target"
_REFRESH_S: Final = 6 * 3600.0
"""Longest time in seconds until the offsets are committed again, as in ``mirroring``."""
_READ_S: Final = 2.0
"""Seconds for which the other cluster's answers before a commit can be used."""
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
"""Shortest and longest time until an offset is translated again that was not proven."""
_AT_ONCE: Final = 100
"""Number of partitions that are requested together."""
_AGAIN_S: Final = 3600.0
_AGAIN_AT_ONCE: Final = 100
"""Seconds after which a copy is proven again, because the log there may have been truncated, and
how many are in one pass."""
_POLL: Final = 0.5
"""Seconds between checks of a group that is waited for."""

_Read = GroupState | tuple[str, Problem]
_Translated = dict[TopicPartition, list[tuple[int, Translation]]]
"""The translations of a group's offset, which is last, and of earlier ones."""
Names = Callable[[str, Iterable[str]], Mapping[str, str]]
"""Returns the other cluster's names of a group's topics. Raises GroupRefusedError."""


class _Place(NamedTuple):
    """A partition with an offset. ``partitions``: all partitions of its topic."""

    offset: int
    to: TopicPartition
    ids: str
    topic_ids: tuple[str, str]
    partitions: tuple[int, ...]


@dataclass
class _Pending:
    """A partition whose offset is not proven. ``earlier``: a former offset of the group, which may
    be proven before the present one if the group is faster than the topic's mirror. ``until``: when
    it is tried again, and ``pause``: seconds until then. ``refuted``: even its copy is wrong."""

    earlier: int
    pause: float = _FIRST_PAUSE_S / 2
    until: float = -inf
    why: str = ""
    refuted: bool = False


class _Seen(NamedTuple):
    """A group in both clusters. ``waits``: why offsets are not copied. ``held``: the committed
    offsets there. ``strange``: those that are not the mirror's. ``joined``: its members there.
    ``session``: the one that has the lease; 0: none is needed."""

    state: GroupState
    places: dict[TopicPartition, _Place]
    waits: dict[TopicPartition, Why]
    topics: Mapping[str, TopicView]
    held: Mapping[TopicPartition, StoredOffset]
    copies: dict[TopicPartition, Copy]
    strange: tuple[str, ...]
    joined: tuple[str, ...]
    session: int = 0

    @property
    def here(self) -> tuple[str, ...]:
        """The group's members in its own cluster."""
        return self.state.members + self.state.coordinator_members

    @property
    def in_step(self) -> bool:
        """Whether each offset has its copy."""
        offsets = {tp: one.offset for tp, one in self.places.items()}
        return not self.waits and in_step(offsets, self.copies)

    def why(self) -> str:
        """Name the offsets that wait, and how far their copies are behind."""
        far = max(
            (lag(one.offset, self.copies.get(tp)) for tp, one in self.places.items()), default=0
        )
        texts = (
            f"{tp}: {why}" if (one := self.places.get(tp)) is None else f"{tp} {one.offset}: {why}"
            for tp, (_, why) in sorted(self.waits.items())
        )
        count = len({*self.places, *self.waits})
        return f"{len(self.waits)} of {count} offsets wait, up to {far} behind: {shown(texts)}"

    def in_short(self) -> str:
        """Return why offsets wait, without numbers that change in each pass."""
        waits = sorted(self.waits.items())
        texts = (why if one is Reason.NOT_PROVEN else f"{tp}: {why}" for tp, (one, why) in waits)
        return f"offsets wait: {shown(dict.fromkeys(texts))}"

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The reasons of the offsets that wait."""
        return tuple(dict.fromkeys(reason for reason, _ in self.waits.values()))


class Across:
    """Mirrors groups to another cluster. Close it at the end.

    Args:
        stores: both stores of the groups' own cluster, opened.
        other: the other cluster.
        translator: finds a group's offsets in the other cluster.
        names: the topics' names in the other cluster.
        lower: store the lower bound of an offset that is not proven.
        stopped: when set, waiting ends early.
        lead: the store of the groups' own cluster whose offsets are right, if the stores differ.
        renamed: the groups' names in the other cluster, if different.
    """

    def __init__(
        self,
        stores: Stores,
        other: OtherCluster,
        translator: Translator,
        names: Names,
        lower: bool,
        stopped: Event | None = None,
        lead: Store | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        self._stores, self._other, self._translator = stores, other, translator
        self._names, self._lower, self._lead = names, lower, lead
        self._renamed = renamed or {}
        self._asks = other.kafka.another()
        """Requests on separate connections, because one is ready for a commit."""
        self._stopped = stopped or Event()
        self._run = uuid.uuid4().hex[:8]
        self._here = stores.cluster_id() or "-"
        self._to = other.view.cluster_id or "other"
        self._pending: dict[tuple[str, TopicPartition], _Pending] = {}
        self._proven: dict[tuple[str, TopicPartition], tuple[Copy, float]] = {}
        """Copies that this object has proven, and when. The log there may have changed since."""
        self._again = 0
        """How many of them may be proven again in this pass."""
        self._late = Lateness()
        self._refreshed: dict[str, float] = {}
        self._period: float | None = None

    def close(self) -> None:
        """Close the connections that this object opened."""
        self._asks.close()

    # -- one pass ------------------------------------------------------------------------------

    def steps(self, groups: Iterable[str], execute: bool) -> Iterator[Step]:
        """Copy groups' offsets once; without ``execute``, only compare. Yield the result for each
        group.

        The offsets of all groups are translated before the first is stored, because the records of
        one group may show that a topic is not a copy.
        """
        names = list(groups)
        self._translator.again()
        self._again = _AGAIN_AT_ONCE
        seen: dict[str, _Seen | Step] = {}
        found: dict[str, _Translated] = {}
        # Under their own names, even if they were once moved under others.
        for state in read_states(self._stores, names, {}, False, {name: name for name in names}):
            name = state.group if isinstance(state, GroupState) else state[0]
            seen[name] = one = self._or_step(name, partial(self._begin, state, execute))
            if isinstance(one, _Seen):
                found[name] = self._translate(one)
        for name, one in seen.items():
            if isinstance(one, _Seen):
                one = self._or_step(name, partial(self._step, one, found[name], execute))
            yield self._late.timed(one)

    def _or_step(self, name: str, work: Callable[[], T]) -> T | Step:
        """Return the result of some work, or the step of a group for which it fails."""
        try:
            return work()
        except ZkUnavailableError:
            raise
        except GroupRefusedError as error:
            meanwhile = error.reason is Reason.OTHER_OPERATOR
            state = "behind" if meanwhile else "refused"
            return Step(name, _SOURCE, state, why=str(error), reasons=(error.reason,))
        except GroupActiveError as error:
            reasons = (Reason.COORDINATOR_MEMBER,)
            return Step(name, _SOURCE, "behind", why=str(error), reasons=reasons)
        except (BrokerError, ZooKeeperError) as error:
            away = isinstance(error, BrokerError) and error.retriable
            reason = Reason.COORDINATOR_AWAY if away else Reason.UNREADABLE
            return Step(name, _SOURCE, "failed", why=str(error), reasons=(reason,))

    def _begin(self, state: _Read, execute: bool) -> _Seen | Step:
        """Read a group in the other cluster. Return its step if nothing must be copied now."""
        checked = _checked(state)
        if isinstance(checked, Result):
            one = checked
            return Step(one.group, "", one.outcome.value, why=one.why, reasons=one.reasons)
        self._check_cluster(checked)
        seen = self._both(checked)
        name, here = checked.group, seen.here
        if seen.joined and here:
            text = (
                f"{shown(here)} in this cluster and {shown(seen.joined)} in the other one run at "
                "the same time: stop those of one cluster"
            )
            return Step(name, _SOURCE, STOPPED, why=text, reasons=(Reason.BOTH_SIDES,))
        if checked.record.handed_over:
            return Step(name, _TARGET, HANDED_OVER)
        if seen.joined:
            text = f"{shown(seen.joined)} in the other cluster run before the cut-over: stop them"
            return Step(name, _SOURCE, STOPPED, why=text, reasons=(Reason.COORDINATOR_MEMBER,))
        if checked.record.to_cluster:
            text = "a cut-over has begun: run zkmigrate cut-over again, or zkmigrate unlock"
            return Step(name, _SOURCE, "behind", why=text, reasons=(Reason.LEAVING,))
        if seen.strange:
            reasons = (Reason.FOLLOWER_MOVED,)
            return Step(name, _SOURCE, STOPPED, why=_strange(seen), reasons=reasons)
        if not execute:
            return seen
        if checked.record.version < 0:  # the lease is below it
            written = record.written(checked.record, command="mirror --to-cluster")
            seen = seen._replace(state=replace(checked, record=self._write(checked, written)))
        lease = self._zk(mirror_state.take_lease_to(name, self._run, self._to))
        session = mirror_state.lease_of(lease, self._run)
        if not session:
            by = "" if lease is None else lease.data.decode(errors="replace").partition(" ")[0]
            return Step(name, _SOURCE, STANDBY, why=f"{by} mirrors it")
        return seen._replace(session=session)

    def _step(self, seen: _Seen, found: _Translated, execute: bool) -> Step:
        name = seen.state.group
        new = self._new(seen, found)
        if execute:
            self._store(seen, new)
        copied = len(new) if execute else 0
        if seen.waits:
            why = seen.in_short() if execute else seen.why()
            return Step(name, _SOURCE, "behind", "", "", why, seen.reasons, copied)
        state = Outcome.WOULD.value if new and not execute else IN_STEP
        return Step(name, _SOURCE, state, copied=copied)

    # -- reading -------------------------------------------------------------------------------

    def _both(self, state: GroupState) -> _Seen:
        """Read a group's offsets in the other cluster, then its members there. Raises
        GroupRefusedError, BrokerError."""
        group, found = state.group, positions(state, self._lead)
        if isinstance(found[0], Reason):
            raise refused(group, found[0], str(found[1]))
        offsets, waits = found
        assert not isinstance(waits, str)
        called = self._names(group, {tp.topic for tp in (*offsets, *waits)})
        topics = self._other.topics(set(called.values())) if called else {}
        places: dict[TopicPartition, _Place] = {}
        for tp, offset in offsets.items():
            source, target = state.topics[tp.topic], topics.get(called[tp.topic])
            if target is None:
                waits[tp] = Reason.TOPIC_MISSING, "the other cluster has no such topic"
            elif len(target.partitions) != len(source.partitions):
                text = "the other cluster's topic has another number of partitions"
                waits[tp] = Reason.PARTITION_MISSING, text
            else:
                to = TopicPartition(called[tp.topic], tp.partition)
                both = source.identity, target.topic_id
                ids = "/".join((self._here, *both))
                places[tp] = _Place(offset, to, ids, both, source.partitions)
        every = [TopicPartition(name, at) for name, one in topics.items() for at in one.partitions]
        held = self._other.kafka.fetch(self._there(group), every)
        held = {tp: one for tp, one in held.items() if tp.topic in topics}
        copies = {tp: copy_in(KafkaOffset(*one)) for tp, one in held.items()}
        strange = tuple(f"{tp} {held[tp].offset}" for tp in sorted(held) if copies[tp] is None)
        mine = {tp: copy for tp, one in places.items() if (copy := copies.get(one.to)) is not None}
        for tp, place in places.items():
            if (why := obstacle_to(place.offset, place.ids, mine.get(tp))) is not None:
                waits[tp] = why
        joined = self._other.kafka.members(self._there(group))
        return _Seen(state, places, waits, topics, held, mine, strange, joined)

    # -- translating ---------------------------------------------------------------------------

    def _translate(self, seen: _Seen) -> _Translated:
        """Return the translations of offsets that have changed, and of those that are tried again.
        Add those that must not be copied to ``waits``."""
        group, now = seen.state.group, time.monotonic()
        wanted: list[tuple[TopicPartition, Asked]] = []
        for tp, place in seen.places.items():
            if tp in seen.waits:
                continue
            before = seen.copies.get(tp)
            same = before is not None and before.source == place.offset
            if same and self._is_known(group, tp, before):
                self._pending.pop((group, tp), None)
                continue
            pending = self._pending.get((group, tp))
            if pending is not None and now < pending.until:
                if pending.refuted or not self._is_enough(before, place):
                    seen.waits[tp] = Reason.NOT_PROVEN, pending.why
                continue
            numbers = {place.offset}
            if pending is not None and (before is None or pending.earlier > before.source):
                numbers.add(min(pending.earlier, place.offset))
            wanted += [(tp, Asked(tp, one, place.to, place.topic_ids)) for one in sorted(numbers)]
        found: _Translated = {}
        for begin in range(0, len(wanted), _AT_ONCE):
            some = wanted[begin : begin + _AT_ONCE]
            results = self._translator.find(
                (asked, seen.places[tp].partitions) for tp, asked in some
            )
            for (tp, asked), one in zip(some, results, strict=True):
                if isinstance(one, BrokerError):
                    seen.waits[tp] = Reason.UNKNOWN, str(one)
                else:
                    found.setdefault(tp, []).append((asked.offset, one))
        return found

    def _new(self, seen: _Seen, found: _Translated) -> dict[TopicPartition, Copy]:
        """Return the copies to store, and add the offsets that are not proven to ``waits``."""
        group, now = seen.state.group, time.monotonic()
        new: dict[TopicPartition, Copy] = {}
        for tp, some in found.items():
            if tp in seen.waits:
                continue
            place, before = seen.places[tp], seen.copies.get(tp)
            judged = [(at, self._translator.judged(place.to.topic, one)) for at, one in some]
            best = next_copy(before, judged, self._lower, place.ids)
            if best is not None and not isinstance(best, Copy):
                seen.waits[tp] = best
                continue
            if best is not None:
                new[tp] = best
            current = judged[-1][1]
            if current.proof is Proof.PROVEN:
                self._pending.pop((group, tp), None)
                if (copy := new.get(tp, before)) is not None:
                    self._proven[group, tp] = copy, now
                continue
            pending = self._pending.setdefault((group, tp), _Pending(place.offset))
            if best is not None and best.source >= pending.earlier:
                pending.earlier, pending.pause = place.offset, _FIRST_PAUSE_S / 2
            pending.pause = min(_LONGEST_PAUSE_S, pending.pause * 2)
            pending.until, pending.why = now + pending.pause, current.why
            copy = best or before
            pending.refuted = copy is not None and self._is_refuted(place, copy, current)
            if pending.refuted or not self._is_enough(copy, place):
                seen.waits[tp] = Reason.NOT_PROVEN, current.why
        return new

    def _is_known(self, group: str, tp: TopicPartition, copy: Copy | None) -> bool:
        """Whether a copy was proven, and need not be proven again now."""
        proven, since = self._proven.get((group, tp), (None, 0.0))
        if copy is None or copy != proven:
            return False
        if time.monotonic() - since < _AGAIN_S or not self._again:
            return True
        self._again -= 1
        return False

    def _there(self, group: str) -> str:
        """Return the group's name in the other cluster."""
        return self._renamed.get(group, group)

    def _is_enough(self, copy: Copy | None, place: _Place) -> bool:
        """Whether a copy is one of the present offset, and is proven if it must be."""
        if copy is None or copy.source != place.offset:
            return False
        return self._lower or copy.proof is Proof.PROVEN

    def _is_refuted(self, place: _Place, copy: Copy, now: Translation) -> bool:
        """Whether the logs show now that a copy is too high, or that its topic is not a copy."""
        proof = Translation(Proof.PROVEN, copy.offset, copy.offset, 0, "")
        low = self._translator.judged(place.to.topic, proof).low
        return low is None or (now.high is not None and now.high < copy.offset)

    # -- writing -------------------------------------------------------------------------------

    def _write(self, state: GroupState, written: Record) -> Record:
        """Write a group's record. Raises GroupRefusedError if another command has written it."""
        known = self._zk(record.write(state.group, written))
        if state.record.version < 0:
            self._zk(ownership.like_root(state.group, record.path(state.group)))
        return known

    def _store(self, seen: _Seen, new: Mapping[TopicPartition, Copy]) -> None:
        """Commit copies. Also commit the others again from time to time, so that they do not
        expire. Raises GroupRefusedError, GroupActiveError, BrokerError, ZooKeeperError."""
        group = seen.state.group
        if self._period is None:
            minutes, _ = self._other.kafka.retention_minutes()
            self._period = min(_REFRESH_S, minutes * 60 / 4)
        due = time.monotonic() - self._refreshed.get(group, -inf) > self._period
        every = {**(seen.copies if due else {}), **new}
        commits = {
            seen.places[tp].to: StoredOffset(one.offset, -1, one.mark) for tp, one in every.items()
        }
        if commits:
            permit = partial(self._check_permitted, seen, commits)
            faults = self._other.kafka.commit(self._there(group), commits, permit)
            check_accepted(group, faults, len(commits))
        if due:
            self._refreshed[group] = time.monotonic()
        seen.copies.update(new)

    def _check_permitted(self, seen: _Seen, commits: Mapping[TopicPartition, StoredOffset]) -> None:
        """Raise GroupRefusedError if the offsets may not be stored now. Raise BrokerError or
        ZooKeeperError if the check takes too long."""
        group, began = seen.state.group, boottime()
        held = self._asks.fetch(self._there(group), list(commits))
        for to, new in commits.items():
            if held.get(to) not in (seen.held.get(to), new):  # new: its answer was lost
                raise mirror_state.changed(group)
        names = {to.topic for to in commits}
        topics = self._other.topics(names)
        for name in names:
            if name not in topics or topics[name].topic_id != seen.topics[name].topic_id:
                raise mirror_state.changed(group)
        asked = boottime()
        serial = seen.state.record.version
        if not self._zk(mirror_state.permit_to(group, serial, self._to, seen.session)):
            raise mirror_state.changed(group)
        now = boottime()
        if now - asked >= MIRROR_PERMITTED_S:
            raise ZooKeeperError(f"ZooKeeper did not answer within {MIRROR_PERMITTED_S:g} s")
        if now - began >= _READ_S:
            text = f"the other cluster did not answer within {_READ_S:g} s, before a commit"
            raise LeaderUnavailableError(text)

    # -- the hand-over -------------------------------------------------------------------------

    def cut_over(self, group: str, execute: bool, wait: float) -> Result:
        """Hand a group over to the other cluster, where its new program may then start.

        Locks out old members, and waits up to ``wait`` seconds until they have left and the other
        cluster has the records at their last offsets. Then stores these offsets there. Raises
        GroupRefusedError, BrokerError, ZooKeeperError.
        """
        state = self._state(group)
        if isinstance(state, Result):
            return state
        self._check_cluster(state)
        self._check_free(self._both(state))
        if not execute:
            return Result(group, Outcome.WOULD, 0)
        fields = {"locked": True, "to_cluster": self._to}  # perhaps handed over before
        written = record.written(state.record, command=CUT_OVER, **fields)
        begun = self._write(state, written)
        since = time.monotonic()
        fault = self._zk(guard.lock(group))
        if fault is not None and fault != guard.UNLOCKED_MEANWHILE:
            cluster = begun.to_cluster if begun.handed_over else ""
            fields = {"locked": False, "to_cluster": cluster}
            self._zk(record.write(group, record.written(begun, **fields)))
            return Result(group, Outcome.FAILED, 0, fault, (Reason.CANNOT_LOCK,))
        # A mirror may still use a permission from before the group was locked.
        time.sleep(max(0.0, since + MIRROR_PERMISSIONS_END_S - time.monotonic()))
        deadline, stored, said = time.monotonic() + wait, 0, False
        while True:
            try:
                stored += self._store_last(group, begun)
                self._finish(group, begun)
                return Result(group, Outcome.DONE, stored, START)
            except (GroupActiveError, GroupInUseError, _Waits, BrokerError) as error:
                lasts = isinstance(error, BrokerError) and not error.retriable
                if lasts or time.monotonic() >= deadline or self._stopped.is_set():
                    raise
            except GroupRefusedError as error:
                if error.reason is Reason.OTHER_OPERATOR:
                    self._zk(guard.let_in(group))  # if another command has taken it back
                raise
            if not said:
                said = True
                what = "its old members to leave, and its records to be copied"
                self._stores.on_wait(f"{what}, in group {group}")
            time.sleep(_POLL)

    def _store_last(self, group: str, begun: Record) -> int:
        """Store the last offsets, and return their number. Raises the errors of ``cut_over``."""
        self._translator.again()
        seen = self._locked(group, begun)
        new = self._new(seen, self._translate(seen))
        self._store(seen, new)
        _check_none_waits(seen)
        return len(new)

    def _finish(self, group: str, begun: Record) -> None:
        """Check that nothing has changed since, and record that the group was handed over."""
        seen = self._locked(group, begun)
        _check_none_waits(seen)
        if not seen.in_step:
            text = "a client that is not registered commits offsets: stop it"
            raise _Waits(f"group {group}: {text}", Reason.OTHER_WRITER)
        self._zk(record.write(group, record.written(begun, handed_over=True)))

    def _state(self, group: str) -> GroupState | Result:
        (state,) = read_states(self._stores, [group], {}, False, {group: group})
        return _checked(state)

    def _locked(self, group: str, begun: Record) -> _Seen:
        """Read a group that this command has locked."""
        state = self._state(group)
        if isinstance(state, Result):
            raise refused(group, (*state.reasons, Reason.UNREADABLE)[0], state.why)
        if state.record.version != begun.version:
            raise mirror_state.changed(group)
        check_members(group, state.members, state.coordinator_members)
        seen = self._both(state)
        self._check_free(seen)
        return seen

    def _check_cluster(self, state: GroupState) -> None:
        """Check that no cut-over of the group names a third cluster. Raises GroupRefusedError."""
        known = state.record
        if known.to_cluster not in ("", self._to):
            reason = Reason.HANDED_OVER if known.handed_over else Reason.LEAVING
            text = (
                f"a cut-over names the cluster {known.to_cluster}: name it, or run zkmigrate unlock"
            )
            raise refused(state.group, reason, text)

    def _check_free(self, seen: _Seen) -> None:
        """Check that no other client uses the group in the other cluster."""
        if seen.state.record.handed_over and (seen.joined or seen.strange):
            reason = Reason.COORDINATOR_MEMBER if seen.joined else Reason.FOLLOWER_MOVED
            text = "was handed over before, and is used in the other cluster: leave it as it is"
            raise refused(seen.state.group, reason, text)
        if seen.joined:
            text = f"consumers are on the coordinator of the other cluster: {shown(seen.joined)}"
            raise in_use(seen.state.group, Reason.COORDINATOR_MEMBER, f"{text}: stop them")
        if seen.strange:
            raise refused(seen.state.group, Reason.FOLLOWER_MOVED, _strange(seen))

    def _zk(self, script: Script[T]) -> T:
        return self._stores.zk.run(script)


class _Waits(GroupRefusedError):
    """An offset is not proven yet, or has changed."""


def _check_none_waits(seen: _Seen) -> None:
    if seen.waits:
        text = f"{seen.why()}: the group stays locked: run the command again, or zkmigrate unlock"
        raise _Waits(f"group {seen.state.group}: {text}", seen.reasons[0])


def _checked(state: _Read) -> GroupState | Result:
    """Return the state of a group, or its outcome if it cannot be mirrored."""
    if not isinstance(state, GroupState):
        return not_read(*state)
    return by_table(state, Action.MIRROR_ELSEWHERE) or state


def _strange(seen: _Seen) -> str:
    return (
        f"another client has committed in the other cluster: {shown(seen.strange)}: let no other "
        "mirror write its offsets, and delete the group there, or leave it there"
    )
