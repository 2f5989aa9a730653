"""The ZooKeeper side of a migratable member: only this side holds partitions, in every mode.

It is the machine of a ZooKeeper group. It claims only what the mode allows, and follows the
assignment that the mode names. Pure; run by the member's thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from zkconsumer.core.common.commands import Drop
from zkconsumer.core.common.events import ListenerDone
from zkconsumer.core.common.machine import Handler
from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition
from zkconsumer.core.migration.commands import RulesChanged, TakenBack
from zkconsumer.core.migration.group import LiveMembership
from zkconsumer.core.migration.machine import LiveMachine
from zkconsumer.core.migration.modes import RULES, Follows, Mode
from zkconsumer.core.zookeeper import events
from zkconsumer.core.zookeeper.machine import RebalanceMachine
from zkconsumer.core.zookeeper.states import State
from zkconsumer.core.zookeeper.view import Decision, GroupView, MemberSpec


class LiveRebalance(RebalanceMachine):
    """Holds partitions by the rules of ``live``; ``group`` has the coordinator's assignment."""

    def __init__(self, spec: MemberSpec, live: LiveMachine, group: LiveMembership) -> None:
        super().__init__(spec)
        self._live = live
        self._group = group
        self._taken_late: dict[TopicPartition, ConsumerThreadId] = {}

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """Partitions that have or may have an owner znode of this member's."""
        return frozenset(self.held) | frozenset(self._unknown_claims)

    def _decide(self, view: GroupView) -> Decision:
        mode = self._live.mode
        if mode is None:
            return Decision({}, {})
        if RULES[mode].follows is Follows.ZOOKEEPER:
            found = super()._decide(view)
            mine = {tp: of for tp, of in found.mine.items() if self._live.may_claim(tp)}
            return Decision(mine, found.assignment)
        mine = {}
        for tp, thread in self._group.held.items():
            if self._live.may_claim(tp):
                claim = self.held.get(tp)
                mine[tp] = thread if claim is None else claim.thread
        return Decision(mine, mine)

    def _obstacle(self, tp: TopicPartition, position: int) -> str | None:
        """See ``CommitQueue.next``. Kafka may lack offsets that ZooKeeper has, and an idle
        partition would then prevent mode ``open``."""
        found = super()._obstacle(tp, position)
        between = self._live.mode not in (None, Mode.ZOOKEEPER)
        return None if found == "" and between else found

    def _rules_changed(self, _event: RulesChanged) -> None:
        if self.registered:
            self._pull_trigger()

    def _taken_back(self, event: TakenBack) -> None:
        taken = {tp: self.held.pop(tp).thread for tp in event.partitions if tp in self.held}
        if not taken:
            return
        for tp in taken:
            self.fetching.discard(tp)
            self._remembered.pop(tp, None)
        self._unknown_claims.update(taken)
        if self.state is State.RELEASING:
            self._taken_late.update(taken)
        self._emit(Drop(frozenset(taken)))
        self._pull_trigger()

    def _claimed(self, event: events.Claimed) -> None:
        allowed = {tp: claim for tp, claim in event.claims.items() if self._live.may_claim(tp)}
        if len(allowed) < len(event.claims):
            self._due.group = True  # those others stay claims to be released
        super()._claimed(replace(event, claims=allowed))

    def _start_announced(self, event: ListenerDone) -> None:
        for tp in sorted(self.held.keys() - self.fetching):
            if not self._live.may_claim(tp):
                self._unknown_claims[tp] = self.held.pop(tp).thread
                self._due.group = True
        super()._start_announced(event)

    def _released(self, event: events.Released) -> None:
        late, self._taken_late = self._taken_late, {}
        super()._released(event)
        self._unknown_claims.update(late)

    ANYWHERE: ClassVar[Mapping[type, Handler]] = {
        **RebalanceMachine.ANYWHERE,
        RulesChanged: _rules_changed,
        TakenBack: _taken_back,
    }
    ANSWERS: ClassVar[Mapping[State, Mapping[type, Handler]]] = {
        **RebalanceMachine.ANSWERS,
        State.RELEASING: {events.Released: _released},
        State.CLAIMING: {events.Claimed: _claimed},
        State.NOTIFYING_START: {ListenerDone: _start_announced},
    }
