"""Machine: the common base of every member's machine: tokens, timers, dispatch, a commit queue.

Events in, commands out. Rules that every machine keeps:

1. Total: any event is legal in any state; nothing raises.
2. An answer whose token is not awaited is dropped and counted (``stale_answers``).
3. Waiting is a timer command, calling the user's listener is a command; their result is an event.

The owner thread of a machine is the only caller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from zkconsumer.core.common import commands
from zkconsumer.core.common.commit_queue import CommitQueue
from zkconsumer.core.common.events import CommitAbandoned

StateT = TypeVar("StateT")
EventT = TypeVar("EventT")
CommandT = TypeVar("CommandT")

Handler = Callable[[Any, Any], None]
"""A method of a machine, which takes the event. The tables name it, and exactly it is called: a
subclass that overrides a handler states it in its own table."""


class Machine(ABC, Generic[StateT, EventT, CommandT]):
    """Takes events in, finds their handler, collects the commands it emits.

    ``state`` and ``stale_answers`` may be read by the owner thread at any time.
    """

    ANYWHERE: ClassVar[Mapping[type, Handler]]
    """Events that are not answers, and their handlers; legal in every state but the last."""
    ANSWERS: ClassVar[Mapping[Any, Mapping[type, Handler]]]
    """The answers that each state waits for, and their handlers."""

    def __init__(self, state: StateT) -> None:
        self.state = state
        self.stale_answers = 0
        self._commands: list[CommandT] = []
        self._token = 0
        self._awaited: int | None = None
        self._timers: dict[str, int] = {}
        self._commits = CommitQueue()

    @abstractmethod
    def _ended(self, event: EventT) -> bool:
        """Whether the machine has ended; if it has, ``event`` is handled by that."""

    @abstractmethod
    def _commit_answered(self, event: EventT) -> None:
        """Handle the answer to the commit that the queue has in progress."""

    @abstractmethod
    def _stepped(self) -> None:
        """Called after each event: send the next commit, if it may be sent now."""

    def _commit_abandoned(self, event: CommitAbandoned) -> None:
        self._commits.abandon(event.request)

    def _answered_otherwise(self, token: int, event: EventT) -> bool:
        """Handle an answer that the state does not wait for; whether it was one."""
        return False

    def _unexpected(self, event: EventT) -> bool:
        """Handle the awaited answer where the state has no handler for it; whether it did."""
        return False

    def on(self, event: EventT) -> list[CommandT]:
        """Handle one event; return the resulting commands."""
        self._commands = []
        if self._ended(event):
            return self._commands
        token: int | None = getattr(event, "token", None)
        handler = self.ANYWHERE.get(type(event))
        if handler is not None:
            handler(self, event)
        elif token is None or not self._answer(token, event):
            self.stale_answers += 1
        self._stepped()
        return self._commands

    def _answer(self, token: int, event: EventT) -> bool:
        if token == self._commits.token:
            self._commit_answered(event)
            return True
        if self._answered_otherwise(token, event):
            return True
        if token != self._awaited:
            return False
        handler = self.ANSWERS.get(self.state, {}).get(type(event))
        if handler is None:
            return self._unexpected(event)
        self._awaited = None
        handler(self, event)
        return True

    def _emit(self, command: CommandT) -> None:
        self._commands.append(command)

    def _refuse_commits(self, why: str) -> None:
        self._commits.refuse(why)
        self._answer_commits()

    def _answer_commits(self) -> None:
        answers = self._commits.answers()
        self._commands += answers  # type: ignore[arg-type]  # every machine's commands include them

    def _next_token(self) -> int:
        self._token += 1
        return self._token

    def _await(self, state: StateT) -> int:
        """Enter ``state`` and return the token that its answer must carry."""
        self.state = state
        self._awaited = self._next_token()
        return self._awaited

    def _timer(self, name: str, seconds: float, jitter: float = 0.0) -> None:
        """Set the timer ``name``; it replaces an earlier one of that name."""
        self._timers[name] = self._next_token()
        timer = commands.SetTimer(self._timers[name], name, seconds, jitter)
        self._emit(timer)  # type: ignore[arg-type]  # every machine's commands include it
