"""ClassicMachine: one member of a group on the broker's coordinator, by the classic protocol.

It decides when to join, sync and rejoin; ``GroupMachine`` does the rest. The owner thread is the
only caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from zkconsumer.core.common.commands import SetBrokers
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.machine import Handler
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups import commands, events
from zkconsumer.core.groups.assignors.strategies import (
    JoinOffer,
    MemberState,
    OfferChanged,
    assign_to_streams,
)
from zkconsumer.core.groups.base import GroupMachine
from zkconsumer.core.groups.data import Goal, Purpose, Round
from zkconsumer.core.groups.formats.consumer_protocol import decode_assignment
from zkconsumer.core.groups.reactions import UNREACHABLE, Reaction, Request, name_of
from zkconsumer.core.groups.spec import ClassicSpec
from zkconsumer.core.groups.states import BETWEEN, JOIN_STATES, State
from zkconsumer.errors import ZnodeFormatError


class ClassicMachine(GroupMachine):
    """The state machine of one classic member. See ``GroupMachine``.

    It joins with ``offer``, which may change; without an offer, with the strategies of ``spec``.
    While it joins, it keeps its partitions only if all strategies of the offer are cooperative.
    Otherwise the leader may assign them to another member, which delivers immediately.
    """

    spec: ClassicSpec

    def __init__(self, spec: ClassicSpec, offer: JoinOffer | None = None) -> None:
        super().__init__(spec)
        self.offer = JoinOffer(spec.strategies) if offer is None else offer
        self._sent_offer = self.offer  # with the last JoinGroup
        self._accepted_offer: JoinOffer | None = None
        self._kept_out = False  # its offer is refused, and that is reported
        self._round = Round()
        self._before: tuple[frozenset[TopicPartition], int] = (frozenset(), -1)
        self._topics: dict[str, int] = {}  # streams of each topic that is subscribed to
        self._known: Mapping[str, int] = {}  # partitions of each topic, when it joined
        self._beat: tuple[int, str, int] | None = None

    @property
    def joined_offer(self) -> JoinOffer | None:
        """The offer with which the member joined the current generation; ``None`` if it has not
        joined."""
        return self._accepted_offer if self.generation >= 0 else None

    # -- joining -----------------------------------------------------------------------------------

    def _offer_changed(self, event: OfferChanged) -> None:
        if event.offer != self.offer:
            self.offer = event.offer
            self._rejoin_wanted = True
            if self.state is State.STABLE:
                self._rejoin()

    def _load(self) -> None:
        self._emit(commands.LoadTopics(self._await(State.LOADING), self.spec.topics_named))

    def _loaded(self, event: events.TopicsLoaded) -> None:
        self._emit(SetBrokers(event.brokers))
        self._known = dict(event.partitions)
        denied = self._look_for_obstacle(event, self.spec.topics_named)
        topics = self._subscribed(self._known)
        if topics is None:
            self._fail(UNREACHABLE, self.misread)
        elif denied and not self._answered_start:
            self._fail(ErrorCode.TOPIC_AUTHORIZATION_FAILED, self.obstacle)
        else:
            self._topics = topics
            self._join()

    def _subscribed(self, known: Mapping[str, int]) -> dict[str, int] | None:
        """Return the topics of the subscription, with their streams. A filter that can no longer
        be evaluated, because topics were added, keeps its earlier topics; ``None`` if it had none.
        """
        before = self.misread
        try:
            topics = self.spec.topics(known)
        except ZnodeFormatError as error:
            kept = {topic: n for topic, n in self._topics.items() if topic in known}
            self.misread = error.reason
            if not self._topics:
                return None
            self.misread += "; until it can be used, it keeps the topics it had"
            if self.misread != before:
                self._report("misread", self.misread)
            return kept
        self.misread = ""
        return topics

    def _join(self) -> None:
        if self.held and not self.offer.cooperative:
            self._rejoin()  # the offer has changed since this join began: release first
            return
        self._rejoin_wanted = False
        self.rejoins += 1
        self._sent_offer = self.offer
        owned = frozenset(self.held) if self.offer.cooperative else frozenset()
        member = MemberState(
            self.spec.consumer_id, self._topics, owned, self.generation, self._before
        )
        protocols = tuple((each.name, each.subscribe(member)) for each in self.offer.strategies)
        self._emit(commands.JoinGroup(self._await(State.JOINING), self.member_id, protocols))

    def _join_failed(self, event: events.RequestFailed) -> None:
        what = self._reaction(Request.JOIN, event.code)
        if event.code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL and self._sent_offer.kept_out:
            if not self._kept_out:
                self._kept_out = True
                self._report("refused", self._sent_offer.kept_out)
            self._back_off(Goal.LOAD)
        elif what is Reaction.TAKE_ID and event.member_id:
            self.member_id = event.member_id
            self._join()
        else:
            self._react(what, event, Goal.LOAD)

    def _joined(self, event: events.Joined) -> None:
        self._lookup.unproved = False
        self._accepted_offer, self._kept_out = self._sent_offer, False
        self.member_id, self.generation = event.member_id, event.generation
        self._round = Round(event.leader == event.member_id, event.protocol, event.members)
        # The offer may have changed since. The member completes this round and then joins again.
        if self._sent_offer.strategy(event.protocol) is None:
            text = f"the group uses the strategy {event.protocol!r}, which is not offered"
            self._fail(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, text)
            return
        if self._beat is None:
            self._timer("heartbeat", self.spec.heartbeat_interval)
        self._round.topics = {t: self._known[t] for t in self._topics if t in self._known}
        wanted = self._round.wanted
        if not self._round.leads:
            self._go(Goal.SYNC)
        elif wanted <= self._topics.keys():
            self._assign()
        else:
            self._emit(commands.LoadTopics(self._await(State.LEADING), tuple(sorted(wanted))))

    def _group_loaded(self, event: events.TopicsLoaded) -> None:
        self._round.topics = dict(event.partitions)
        self._assign()

    def _assign(self) -> None:
        strategy = self._sent_offer.strategy(self._round.protocol)
        assert strategy is not None
        self._round.assignments = strategy.assign(self._round.members, self._round.topics)
        self._go(Goal.SYNC)

    def _send_sync(self) -> None:
        token = self._await(State.SYNCING)
        self._emit(
            commands.SyncGroup(token, self.member_id, self.generation, self._round.assignments)
        )

    def _sync_failed(self, event: events.RequestFailed) -> None:
        what = self._reaction(Request.SYNC, event.code)
        self._react(what, event, Goal.LOAD if what is Reaction.FIND_AGAIN else Goal.SYNC)

    # -- the assignment ----------------------------------------------------------------------------

    def _synced(self, event: events.Synced) -> None:
        try:
            given = decode_assignment(event.assignment)
        except ValueError as error:
            self._report("broken-assignment", f"the leader's assignment cannot be read: {error}")
            given = decode_assignment(b"")
        self._before = (given.partitions, self.generation)
        self.assigned = len(given.partitions)
        self._starting = assign_to_streams(self.spec.consumer_id, self._topics, given, self.held)
        gone = frozenset(self.held) - given.partitions
        if gone:
            self._rejoin_wanted = True  # others wait for them
            self._release(gone, Purpose.SHRINK)
        else:
            self._extend()

    def _pursue(self, goal: Goal) -> None:
        if goal is Goal.SYNC:
            self._send_sync()

    def _read_again(self, token: int) -> None:
        self._emit(commands.LoadTopics(token, self._topics_to_reread()))

    def _topics_to_reread(self) -> tuple[str, ...] | None:
        """Return the member's own topics, or all for a filter. The leader also reads those of the
        other members."""
        own = self.spec.topics_named
        return None if own is None else tuple(sorted({*own, *self._round.wanted}))

    def _reread_done(self, event: Any) -> None:
        if not isinstance(event, events.TopicsLoaded):
            return
        self._emit(SetBrokers(event.brokers))
        self._look_for_obstacle(event, self.spec.topics_named)
        topics = self._subscribed(event.partitions)
        if self.state is not State.STABLE or topics is None:
            return
        wanted = self._round.wanted | topics.keys()
        now = {topic: event.partitions[topic] for topic in wanted if topic in event.partitions}
        # A static member that was restarted may lead without knowing (fixed by KIP-814).
        may_lead = self._round.leads or self.spec.instance_id is not None
        if topics != self._topics or (may_lead and now != self._round.topics):
            self._report("topics-changed", "topics or partitions have changed: joining again")
            self._rejoin()

    # -- joining again -----------------------------------------------------------------------------

    def _rejoin(self) -> None:
        if self.held and not self.offer.cooperative:
            self._release(frozenset(self.held), Purpose.REJOIN)
        else:
            self._go(Goal.LOAD)

    def _is_joining(self) -> bool:
        return self.state in BETWEEN or self._committed_in != self.generation

    def _may_commit(self) -> bool:
        """Whether a requested commit may be sent. A cooperative member may commit while it
        joins, because it keeps its partitions and delivers. The coordinator accepts commits of
        the generation until all members have joined."""
        joins = self.state in JOIN_STATES and self._goal is Goal.LOAD
        if joins and self.held:
            return self.generation != self._stale
        return super()._may_commit()

    def _lapsed(self, event: events.MembershipLapsed) -> None:
        """Rejoin without the partitions, because other members may have owned them in the
        meantime."""
        if self.state is State.JOINING and self.held:
            self._lose(expelled=False)

    # -- heartbeats --------------------------------------------------------------------------------

    def _send_heartbeat(self) -> None:
        if self.generation >= 0 and self._lookup.known:
            self._beat = (self._next_token(), self.member_id, self.generation)
            self._emit(commands.Heartbeat(*self._beat))

    def _heartbeat_answered(self, event: events.HeartbeatAnswered) -> None:
        if self._beat is None or event.token != self._beat[0]:
            self.stale_answers += 1
            return
        current = self._beat[1:] == (self.member_id, self.generation)
        self._beat = None
        if self.generation < 0:
            return
        self._timer("heartbeat", self.spec.heartbeat_interval)
        what = self._reaction(Request.HEARTBEAT, event.code)
        self._lookup.unproved = self._lookup.unproved and what is Reaction.FIND_AGAIN
        if what is Reaction.FIND_AGAIN:
            self._coordinator_lost()
        elif not current or self.state is State.JOINING:
            return  # the answer to JoinGroup will tell
        elif what is Reaction.REJOIN:
            if self.state is State.STABLE:
                self._rejoin()
            elif self.state not in BETWEEN:
                self._rejoin_wanted = True
        elif what in (Reaction.LOST, Reaction.EXPELLED):
            self._lose(what is Reaction.EXPELLED)
        elif what is Reaction.FATAL:
            self._fail(event.code, name_of(event.code))

    # -- which event is legal where --------------------------------------------------------------

    ANYWHERE: ClassVar[Mapping[type, Handler]] = {
        **GroupMachine.ANYWHERE,
        events.HeartbeatAnswered: _heartbeat_answered,
        events.MembershipLapsed: _lapsed,
        OfferChanged: _offer_changed,
    }
    ANSWERS: ClassVar[Mapping[State, Mapping[type, Handler]]] = {
        **GroupMachine.ANSWERS,
        State.LOADING: {
            events.TopicsLoaded: _loaded,
            events.RequestFailed: GroupMachine._load_failed,
        },
        State.JOINING: {events.Joined: _joined, events.RequestFailed: _join_failed},
        State.LEADING: {
            events.TopicsLoaded: _group_loaded,
            events.RequestFailed: GroupMachine._load_failed,
        },
        State.SYNCING: {events.Synced: _synced, events.RequestFailed: _sync_failed},
    }
