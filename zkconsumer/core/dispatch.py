"""What any machine of facts and orders needs: tokens, timers, dispatch. No rebalance logic.

Subclasses say in ``zkconsumer.core.states`` which fact is legal where. The owner thread of the
machine is the only caller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from zkconsumer.core import facts, orders
from zkconsumer.core.commit_lane import CommitLane
from zkconsumer.core.facts import Fact
from zkconsumer.core.orders import Order
from zkconsumer.core.states import ANSWERS, ANYWHERE, State


class Dispatcher(ABC):
    """Takes facts in, finds their handler, collects the orders it emits."""

    def __init__(self) -> None:
        self.state = State.NEW
        self.stale_answers = 0
        self._orders: list[Order] = []
        self._token = 0
        self._awaited: int | None = None
        self._timers: dict[str, int] = {}
        self._lane = CommitLane()

    @abstractmethod
    def _pump_commits(self) -> None:
        """Carry out commits that are waiting, as far as they may."""

    @abstractmethod
    def _lane_answered(self, fact: facts.Committed | facts.ScriptFailed) -> None:
        """The commit of the lane is answered."""

    @abstractmethod
    def _script_failed(self, fact: facts.ScriptFailed) -> None:
        """The order that was awaited could not be carried out."""

    def on(self, fact: Fact) -> list[Order]:
        """Take in one fact; return the orders that follow from it."""
        self._orders = []
        if self.state is State.CLOSED:
            if isinstance(fact, facts.CommitRequested) and fact.request is not None:
                self._emit(orders.AnswerCommit(fact.request, ("the connector is shut down",)))
            return self._orders
        name = ANYWHERE.get(type(fact))
        if name is not None:
            getattr(self, name)(fact)
        else:
            self._answer(fact)
        self._pump_commits()
        return self._orders

    def _answer(self, fact: Fact) -> None:
        token = getattr(fact, "token", None)
        if self._lane.busy and token == self._lane.token:
            if isinstance(fact, facts.Committed | facts.ScriptFailed):
                self._lane_answered(fact)
            else:
                self.stale_answers += 1
        elif token is not None and token == self._awaited:
            handler = ANSWERS.get(self.state, {}).get(type(fact))
            if handler is not None:
                self._awaited = None
                getattr(self, handler)(fact)
            elif isinstance(fact, facts.ScriptFailed):
                self._awaited = None
                self._script_failed(fact)
            else:
                self.stale_answers += 1
        else:
            self.stale_answers += 1

    def _emit(self, order: Order) -> None:
        self._orders.append(order)

    def _next_token(self) -> int:
        self._token += 1
        return self._token

    def _await(self, state: State) -> int:
        """Enter ``state`` and return the token that its answer must carry."""
        self.state = state
        self._awaited = self._next_token()
        return self._awaited

    def _timer(self, name: str, seconds: float, jitter: float = 0.0) -> None:
        self._timers[name] = self._next_token()
        self._emit(orders.SetTimer(self._timers[name], name, seconds, jitter))
