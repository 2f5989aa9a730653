"""How a live move ends the mirror of its group."""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from zkmigrate.apply.live import EndMirror
from zkmigrate.apply.outcome import Outcome, Result
from zkmigrate.commands.steps import perform
from zkmigrate.mirror.mirroring import Mirroring
from zkmigrate.plan.gates import Obstacle
from zkmigrate.reasons import Reason
from zkmigrate.stores.sessions import Stores


def _last(script: Generator[Any, Any, Any]) -> Any:
    """Carry out a script without requests."""
    try:
        return script.send(None)
    except StopIteration as end:
        return end.value


@pytest.mark.parametrize("reasons", [(), (Reason.CHANGED,)])
def test_a_mirror_that_does_not_end_is_an_obstacle(
    monkeypatch: pytest.MonkeyPatch, reasons: tuple[Reason, ...]
) -> None:
    """Whether it has a reason of the table, or has failed for another one."""
    result = Result("g", Outcome.FAILED, 0, "the broker is away", reasons)
    end: Callable[..., Result] = lambda *_: result  # noqa: E731
    monkeypatch.setattr(Mirroring, "__init__", lambda *_: None)
    monkeypatch.setattr(Mirroring, "end", end)
    stores = cast(Stores, SimpleNamespace(zk=SimpleNamespace(run=_last, losses=0)))

    def script() -> Generator[Any, Any, Any]:
        return (yield EndMirror("g"))

    found = perform(stores, script())
    assert isinstance(found, Obstacle)
    assert (found, found.reason) == ("the broker is away", (*reasons, Reason.UNREADABLE)[0])
