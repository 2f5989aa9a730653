"""What the machine of a member on the coordinator stands on: its data, dispatch, tokens, timers.

No membership logic. ``zkconsumer.core.membership.states`` says which fact is legal where.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum

from zkconsumer.core import facts as common
from zkconsumer.core import orders as common_orders
from zkconsumer.core.membership import facts
from zkconsumer.core.membership.commits import CommitDesk
from zkconsumer.core.membership.facts import GroupMember, MembershipFact
from zkconsumer.core.membership.orders import MembershipOrder
from zkconsumer.core.membership.spec import GroupSpec
from zkconsumer.core.membership.states import ANSWERS, ANYWHERE, ENDED, State
from zkconsumer.core.types import ConsumerThreadId, TopicPartition


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


class MembershipDispatcher(ABC):
    """Takes facts in, finds their handler, collects the orders it emits."""

    @abstractmethod
    def _pump_commits(self) -> None:
        """Carry out commits that are waiting, as far as they may."""

    @abstractmethod
    def _desk_answered(self, fact: MembershipFact) -> None:
        """A commit that was asked for is answered."""

    @abstractmethod
    def _reread_done(self, fact: facts.TopicsLoaded) -> None:
        """The topics were read again."""

    @abstractmethod
    def _find_beside(self) -> None:
        """Look for a lost coordinator where nothing else does."""

    @abstractmethod
    def _search_done(self, fact: MembershipFact) -> None:
        """The coordinator was looked for beside something else."""

    @abstractmethod
    def _close(self) -> None:
        """It is over."""

    def __init__(self, spec: GroupSpec) -> None:
        self.spec = spec
        self.state = State.NEW
        self.member_id = ""
        self.generation = -1
        self.leads = False
        self.protocol = ""
        self.held: dict[TopicPartition, ConsumerThreadId] = {}
        """Partitions that are this member's, and the stream each belongs to."""
        self.stale_answers = 0
        self.rejoins = 0
        """How often JoinGroup was sent."""
        self._orders: list[MembershipOrder] = []
        self._token = 0
        self._awaited: int | None = None
        self._timers: dict[str, int] = {}
        self._goal = Goal.LOAD
        self._purpose = Purpose.REJOIN
        self._coordinator = False
        self._unproved = False  # nothing but "not me" was heard since the last coordinator was lost
        self.closing = False
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
        self._desk = CommitDesk(spec.commit_attempts)

    def on(self, fact: MembershipFact) -> list[MembershipOrder]:
        """Take in one fact; return the orders that follow from it."""
        self._orders = []
        if self.state in ENDED:
            self._on_ended(fact)
            return self._orders
        name = ANYWHERE.get(type(fact))
        token = getattr(fact, "token", None)
        if name is not None:
            getattr(self, name)(fact)
        elif token is not None and token == self._desk.token:
            self._desk_answered(fact)
        elif token is not None and token == self._reread:
            self._reread = None
            if isinstance(fact, facts.TopicsLoaded):
                self._reread_done(fact)
        elif token is not None and token == self._search:
            self._search = None
            self._search_done(fact)
        elif (
            token is not None
            and token == self._awaited
            and (handler := ANSWERS.get(self.state, {}).get(type(fact)))
        ):
            self._awaited = None
            getattr(self, handler)(fact)
        else:
            self.stale_answers += 1
        self._find_beside()
        self._pump_commits()
        return self._orders

    def _on_ended(self, fact: MembershipFact) -> None:
        if isinstance(fact, common.CommitRequested) and fact.request is not None:
            told = (
                "the member has failed"
                if self.state is State.FAILED
                else "the connector is shut down"
            )
            self._emit(common_orders.AnswerCommit(fact.request, (told,)))
        elif isinstance(fact, common.CloseRequested) and self.state is State.FAILED:
            self._close()

    # -- small tools -----------------------------------------------------------------------------

    def _emit(self, order: MembershipOrder) -> None:
        self._orders.append(order)

    def _next_token(self) -> int:
        self._token += 1
        return self._token

    def _await(self, state: State) -> int:
        self.state = state
        self._awaited = self._next_token()
        return self._awaited

    def _timer(self, name: str, seconds: float) -> None:
        self._timers[name] = self._next_token()
        self._emit(common_orders.SetTimer(self._timers[name], name, seconds))

    def _report(self, event: str, text: str) -> None:
        self._emit(common_orders.Report(event, text))
