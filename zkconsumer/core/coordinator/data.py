"""The data of a coordinator's member, and what is answered beside its state.

No membership logic.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from enum import Enum

from zkconsumer.core.common.machine import Machine
from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition
from zkconsumer.core.coordinator import commands, events
from zkconsumer.core.coordinator.commands import Command
from zkconsumer.core.coordinator.events import Event, GroupMember
from zkconsumer.core.coordinator.spec import GroupSpec
from zkconsumer.core.coordinator.states import ENDED, State


class Goal(Enum):
    """What to do once the coordinator is known and the pause is over."""

    LOAD = "join"
    SYNC = "send the same SyncGroup again"
    COMMIT = "commit what is about to be released"
    OFFSETS = "read committed offsets"
    REST = "be a member"


class Purpose(Enum):
    """Why partitions are released."""

    REJOIN = "before joining again"
    SHRINK = "the assignment has them no more"
    CLOSE = "leaving"


class MembershipData(Machine[State, Event, Command]):
    """A member's data, and the commands that are answered beside what its state waits for."""

    @abstractmethod
    def _reread_done(self, event: events.TopicsLoaded) -> None:
        """The topics were read again."""

    @abstractmethod
    def _search_done(self, event: Event) -> None:
        """The coordinator was looked for beside something else."""

    @abstractmethod
    def _close(self) -> None:
        """It is over."""

    def __init__(self, spec: GroupSpec) -> None:
        super().__init__(State.NEW)
        self.spec = spec
        self.member_id = ""
        self.generation = -1
        self.leads = False
        self.protocol = ""
        self.held: dict[TopicPartition, ConsumerThreadId] = {}
        """Partitions that are this member's, and the stream each belongs to."""
        self.rejoins = 0
        """How often JoinGroup was sent."""
        self._goal = Goal.LOAD
        self._purpose = Purpose.REJOIN
        self._coordinator = False
        self._unproved = False  # nothing but "not me" was heard since the last coordinator was lost
        self.closing = False
        self._in_listener = False  # the listener has asked for that, and waits
        self._answered_start = False
        self._rejoin_wanted = False
        self._outside = False
        self._beat: tuple[int, str, int] | None = None
        self._reread: int | None = None
        self._search: int | None = None
        self._search_paused = False
        self._topics: dict[str, int] = {}
        self._known: Mapping[str, int] = {}
        self._members: tuple[GroupMember, ...] = ()
        self._before: tuple[frozenset[TopicPartition], int] = (frozenset(), -1)
        self._group_topics: dict[str, int] = {}
        self._wanted: frozenset[str] = frozenset()
        self._assignments: Mapping[str, bytes] = {}
        self._releasing: frozenset[TopicPartition] = frozenset()
        self._positions: dict[TopicPartition, int] = {}
        self._stopped_at: Mapping[TopicPartition, int] = {}
        self._release_late = False  # the time for its commit is over
        self._release_fault = ""
        self._starting: dict[TopicPartition, ConsumerThreadId] = {}
        self._offsets: Mapping[TopicPartition, int | None] = {}
        self._faults: list[str] = []

    # -- see ``Machine``

    def _ended(self, event: Event) -> bool:
        if self.state not in ENDED:
            return False
        if isinstance(event, events.CommitRequested) and event.request is not None:
            failed = self.state is State.FAILED
            why = "the member has failed" if failed else "the connector is shut down"
            self._emit(commands.AnswerCommit(event.request, (why,)))
        elif isinstance(event, events.CloseRequested) and self.state is State.FAILED:
            self._close()
        return True

    def _answered_beside(self, token: int, event: Event) -> bool:
        if token == self._reread:
            self._reread = None
            if isinstance(event, events.TopicsLoaded):
                self._reread_done(event)
        elif token == self._search:
            self._search = None
            self._search_done(event)
        else:
            return False
        return True

    def _report(self, event: str, text: str) -> None:
        self._emit(commands.Report(event, text))
