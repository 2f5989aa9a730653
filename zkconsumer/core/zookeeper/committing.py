"""A member's claims and commits in a rebalance, their results, and the obstacles to them.

This is the part of the machine between ``Machine`` and ``RebalanceMachine``; the same thread runs
it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from zkconsumer.core.common.commands import AnswerCommit, Drop, Report
from zkconsumer.core.common.events import CommitRequested
from zkconsumer.core.common.faults import Fault, Trouble
from zkconsumer.core.common.machine import Machine
from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition
from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.commands import Command
from zkconsumer.core.zookeeper.events import Claim, Event
from zkconsumer.core.zookeeper.ops import session_text
from zkconsumer.core.zookeeper.profiles import profile_of
from zkconsumer.core.zookeeper.states import CLOSING, COMMIT_STATES, Registration, Remembered, State
from zkconsumer.core.zookeeper.view import Decision, GroupView, MemberSpec, decide, obstacle


class ClaimRule(Protocol):
    """Decides which partitions a member should own and may claim. Called on the machine's thread.

    The machine gets ``RulesChanged`` when the rule's answers may have changed.
    """

    def decide(self, view: GroupView, held: Mapping[TopicPartition, Claim]) -> Decision:
        """Return the partitions that the member should own, and the assignment on which this is
        based. ``held``: the partitions that it owns now."""

    def may_claim(self, partition: TopicPartition) -> bool:
        """Return whether the member may own a partition now."""

    @property
    def stores_in_kafka(self) -> bool:
        """Whether commits also store offsets in Kafka, which may lack offsets that
        ZooKeeper has."""


@dataclass(frozen=True, slots=True)
class GroupRule:
    """The rule of a group that is only in ZooKeeper: the group's own assignment applies."""

    spec: MemberSpec

    def decide(self, view: GroupView, held: Mapping[TopicPartition, Claim]) -> Decision:
        """Implement ``ClaimRule.decide``."""
        return decide(view, self.spec.consumer_id, self.spec.assignor)

    def may_claim(self, partition: TopicPartition) -> bool:
        """Implement ``ClaimRule.may_claim``."""
        return True

    @property
    def stores_in_kafka(self) -> bool:
        """Implement ``ClaimRule.stores_in_kafka``."""
        return self.spec.kafka_storage


def owner_of(text: str, session: int | None) -> str:
    """Return an owner znode's text and session, for messages."""
    shown = ascii(text[:60])[1:-1]
    if session is None:
        return shown
    return f"{shown} (session {session_text(session)})" if session else f"{shown} (no session)"


def consumer_of(text: str) -> str:
    """Return the member in an owner znode's text, or the text itself."""
    try:
        return ConsumerThreadId.parse(text).consumer
    except ValueError:
        return text


class Committing(Machine[State, Event, Command]):
    """The part of a member's machine that keeps its claims and commits their positions."""

    def __init__(self, spec: MemberSpec, rule: ClaimRule) -> None:
        super().__init__(State.NEW)
        self.spec = spec
        self.profile = profile_of(spec)
        self._rule = rule
        self.held: dict[TopicPartition, Claim] = {}
        self.fetching: set[TopicPartition] = set()
        #: Claims with unknown outcome: there may be owner znodes.
        self._unknown_claims: dict[TopicPartition, ConsumerThreadId] = {}
        self.blocked: dict[TopicPartition, str] = {}
        self.blockers: Mapping[TopicPartition, int] = {}
        self._known_blockers: dict[TopicPartition, str] = {}
        self._registration = Registration()
        #: How the rebalance continues when the commit under way is answered.
        self._after_commit: Callable[[], None] | None = None
        self._reset_meanwhile: set[TopicPartition] = set()
        self._remembered: dict[TopicPartition, Remembered] = {}
        #: Tokens up to this one are of commands from before the connection was re-established.
        self._doubted = 0
        #: Partitions that this session has claimed, whether it still holds them or not.
        self._claimed_here: dict[TopicPartition, ConsumerThreadId] = {}
        #: Those of them that it does not hold, but whose owner znodes may be there again.
        self._suspected: dict[TopicPartition, ConsumerThreadId] = {}
        #: The last version of each offset znode that this member has seen.
        self._versions: dict[TopicPartition, int] = {}
        self.view: GroupView | None = None
        self.quarantined: Mapping[str, str] = {}
        self.doubtful: Mapping[str, str] = {}
        self.obstacle = ""

    @abstractmethod
    def _pull_trigger(self) -> None:
        """Read the group again as soon as the member is idle: something may have changed."""

    @abstractmethod
    def _script_failed(self, event: events.ScriptFailed) -> None:
        """Handle that the command in progress failed."""

    # -- see ``Machine``

    def _ended(self, event: Event) -> bool:
        if self.state is not State.CLOSED:
            return False
        if isinstance(event, CommitRequested) and event.request is not None:
            self._emit(AnswerCommit(event.request, ("the connector is shut down",)))
        return True

    def _unexpected(self, event: Event) -> bool:
        if isinstance(event, events.ScriptFailed):
            self._awaited = None
            self._script_failed(event)
            return True
        return False

    @property
    def registered_epoch(self) -> int:
        """The data version of this member's registration in this session."""
        return self.profile.epoch(self._registration.number)

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """Partitions that have, or may have, an owner znode of this member."""
        return frozenset((*self.held, *self._unknown_claims, *self._suspected))

    def _rules_changed(self, _event: events.RulesChanged) -> None:
        if self._registration.confirmed:
            self._pull_trigger()

    def _taken_back(self, event: events.TakenBack) -> None:
        taken = event.partitions & self.held.keys()
        if taken:
            self._disown(taken)
            self.fetching -= taken
            for tp in taken:
                self._remembered.pop(tp, None)
            self._emit(Drop(taken))
            self._pull_trigger()

    def _unwanted_claims(self, wanted: Container[TopicPartition]) -> dict[TopicPartition, Claim]:
        """Return claims with unknown outcome that are not wanted, but may have an owner znode of
        this session."""
        unknown = self._unknown_claims.items()
        return {tp: Claim(thread, None, None) for tp, thread in unknown if tp not in wanted}

    def _doubt_claims(self) -> None:
        """Trust no version, and search owner znodes for all claims of this session, because the
        servers may have been restored from a backup."""
        if not self.profile.cleans_up:
            return
        self._doubted = self._token
        for tp, claim in self.held.items():
            self.held[tp] = replace(claim, unchecked=True)
            self._commits.note_stored(tp, None)
        here = self._claimed_here
        self._suspected = {tp: thread for tp, thread in here.items() if tp not in self.held}

    def _forget_claims(self) -> None:
        for claims in (self.held, self._unknown_claims, self._claimed_here, self._suspected):
            claims.clear()

    def _hold(self, tp: TopicPartition, claim: Claim, token: int, grown: int) -> None:
        """Hold ``tp`` with ``claim``, the result of command ``token``. The version has grown by
        at least ``grown``."""
        before = self._versions.get(tp)
        if before is not None and (claim.version is None or claim.version < before + grown):
            now = "is gone" if claim.version is None else f"went back to {claim.version}"
            text = (
                f"{self.spec.paths.offset(tp)}: version {before} {now}: the znode was deleted, or "
                "ZooKeeper was restored from a backup, or has lost its last transactions; messages "
                "may be delivered again"
            )
            self._emit(Report("went-back", text))
        if claim.version is None:
            self._versions.pop(tp, None)
        else:
            self._versions[tp] = claim.version
        self._claimed_here[tp] = claim.thread
        self.held[tp] = replace(claim, unchecked=True) if token <= self._doubted else claim

    def _emit_release(self, token: int, claims: Mapping[TopicPartition, Claim]) -> None:
        """Release these partitions. Only in a mixed group may another library's member have put
        its owner znode in their place without another change."""
        mixed = self.view is None or self.view.mixed
        self._emit(commands.Release(token, self.registered_epoch, claims, mixed))

    def _report_blocked(self) -> None:
        """Report the owners of blocked partitions, once until they change."""
        owners = {tp: owner_of(text, self.blockers.get(tp)) for tp, text in self.blocked.items()}
        if any(self._known_blockers.get(tp) != owner for tp, owner in owners.items()):
            named = "; ".join(f"{tp}, owned by {owner}" for tp, owner in sorted(owners.items())[:3])
            more = f"; and {len(owners) - 3} more" if len(owners) > 3 else ""
            self._emit(Report("blocked", f"assigned to this member: {named}{more}"))
        self._known_blockers = owners

    def _report_faults(self, view: GroupView) -> None:
        for event, before, now in (
            ("quarantined", self.quarantined, view.quarantined),
            ("doubtful", self.doubtful, view.doubtful),
        ):
            for path, reason in now.items():
                if before.get(path) != reason:
                    self._emit(Report(event, reason))
        self.quarantined, self.doubtful = view.quarantined, view.doubtful
        text = obstacle(view, self.spec)
        if text and text != self.obstacle:
            self._emit(Report("unassignable", text))
        self.obstacle = text

    def faults(self) -> Iterator[Fault]:
        """Return the member's current faults. Any thread."""
        for tp, text in sorted(self.blocked.copy().items()):
            owner = owner_of(text, self.blockers.get(tp))
            yield Fault(Trouble.BLOCKED, f"{owner} owns {tp}", str(tp), owner)
        if self.obstacle:
            yield Fault(Trouble.UNASSIGNABLE, self.obstacle)
        for path, text in (*self.quarantined.items(), *self.doubtful.items()):
            yield Fault(Trouble.MISREAD, text, path)

    def _disown(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop holding these partitions. The next attempt releases their owner znodes."""
        for tp in partitions:
            self._unknown_claims[tp] = self.held.pop(tp).thread

    def _owners_known(self, token: int, foreign: frozenset[TopicPartition]) -> None:
        """Handle the answer to ``CheckOwners``, unless it is from before a reconnection."""
        if token > self._doubted:
            for tp, thread in self._suspected.items():
                if tp not in foreign and tp not in self.held:
                    self._unknown_claims.setdefault(tp, thread)
            self._suspected = {}
        reason = "the owner znode is gone or belongs to another member"
        self._take_away(foreign & self.held.keys(), "lost-owner", reason)

    def _take_away(self, partitions: frozenset[TopicPartition], event: str, reason: str) -> None:
        """Stop holding partitions that other members have taken without a release by this one."""
        if not partitions:
            return
        for tp in sorted(partitions):
            self.held.pop(tp, None)
            self.fetching.discard(tp)
            self._emit(Report(event, f"{tp}: {reason}"))
        self._emit(Drop(partitions))

    def _remember(
        self, tp: TopicPartition, position: int, claim: Claim, sent: int | None = None
    ) -> None:
        if claim.is_behind(position):
            self._remembered[tp] = Remembered(position, claim, sent)

    def _resumed_at(self, tp: TopicPartition) -> int | None:
        """Return the remembered position, unless another process has stored an offset since."""
        remembered, claim = self._remembered.get(tp), self.held[tp]
        if remembered is None:
            return None
        if claim.committed == remembered.claim.committed:
            claim = replace(claim, invalidated=claim.invalidated or remembered.claim.invalidated)
            self.held[tp] = claim
            self._note_stored(tp, claim)
        elif claim.committed is None or claim.committed != remembered.sent:
            return None
        return remembered.position

    def _resumed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the remembered positions of the held partitions."""
        resumed = {tp: self._resumed_at(tp) for tp in partitions if tp in self.held}
        return {tp: position for tp, position in resumed.items() if position is not None}

    def _offset_reset(self, event: events.OffsetReset) -> None:
        claim = self.held.get(event.partition)
        if claim is not None and event.old is not None:
            self.held[event.partition] = replace(claim, invalidated=True)
            self._commits.forget({event.partition})
            if self._commits.token is not None:  # its positions are from before the reset
                self._reset_meanwhile.add(event.partition)

    def _commit_requested(self, event: CommitRequested) -> None:
        if self.state in CLOSING or self._registration.session is None:
            if event.request is not None:
                reason = "there is no ZooKeeper session"
                if self.state in CLOSING:
                    reason = "the connector is shutting down"
                self._emit(AnswerCommit(event.request, (reason,)))
            return
        self._commits.add(event)

    def _stepped(self) -> None:
        may_commit = self.state in COMMIT_STATES and self._after_commit is None
        if may_commit and self._commits.next(self._obstacle):
            self._commits.token = token = self._next_token()
            positions = self._commits.sent
            claims = {tp: self.held[tp] for tp in positions}
            self._emit(commands.Commit(token, self.registered_epoch, positions, claims))
        self._answer_commits()

    def _obstacle(self, tp: TopicPartition, position: int) -> str | None:
        """See ``CommitQueue.next``."""
        claim = self.held.get(tp)
        if claim is None:
            return "not owned by this member"
        if claim.would_regress(position) and not self.profile.lowers_offsets:
            return (
                f"{position} is below the committed offset {claim.committed}; commits never go "
                "backwards"
            )
        stored = position == claim.committed and not (claim.lags or claim.unchecked)
        return "" if stored and not self._rule.stores_in_kafka else None

    def _commit_answered(self, event: Event) -> None:
        if isinstance(event, events.Committed):
            faults = self._note_committed(event)
            if event.unregistered:
                faults.append("the member's registration is missing; it is being created again")
        elif isinstance(event, events.ScriptFailed):
            faults = [event.text]
        else:
            self.stale_answers += 1
            return
        if self._commits.automatic and faults:
            self._emit(Report("commit-failed", "; ".join(faults)))
        self._commits.settle(faults)
        self._answer_commits()
        if self._after_commit is not None:
            proceed, self._after_commit = self._after_commit, None
            proceed()

    def _note_committed(self, event: events.Committed) -> list[str]:
        """Store new fencing tokens, and drop partitions that belong to another session."""
        for tp, claim in event.claims.items():
            if tp in self.held:
                reset = tp in self._reset_meanwhile
                held = replace(claim, invalidated=True) if reset else claim
                self._hold(tp, held, event.token, 0)
                self._note_stored(tp, self.held[tp])
        self._reset_meanwhile.clear()
        for tp in sorted(event.foreign):
            self._emit(Report("foreign-commit", f"{tp}: another process wrote its offset"))
        for reason in event.broken.values():
            self._emit(Report("broken-offset", reason))
        faults = [f"{tp}: owned by another member now" for tp in sorted(event.fenced)]
        faults += event.broken.values()
        self._take_away(event.fenced & self.held.keys(), "fenced", "another member owns it")
        if event.fenced or event.unregistered:
            self._pull_trigger()
        return faults

    def _note_stored(self, tp: TopicPartition, claim: Claim) -> None:
        counts = not (claim.invalidated or claim.lags or claim.unchecked)
        self._commits.note_stored(tp, claim.committed if counts else None)

    def _when_no_commit_runs(self, proceed: Callable[[], None]) -> None:
        """Run ``proceed`` now, or when the commit in progress is answered."""
        if self._commits.token is None:
            proceed()
        else:
            self._after_commit = proceed
