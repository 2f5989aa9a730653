"""Visits every reachable state of a model, the nearest ones first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

StateT = TypeVar("StateT", bound=Hashable)


@dataclass(slots=True)
class Result(Generic[StateT]):
    """How many states a search visited, and what it found."""

    states: int
    found: dict[str, list[str]]
    """Each violation, and the steps of a shortest way to it."""
    taken: set[str]
    """The names of all steps that were taken."""


def explore(
    first: StateT,
    steps: Callable[[StateT], Iterable[tuple[str, StateT]]],
    violations: Callable[[StateT, str, StateT], Iterable[str]],
    wanted: Collection[str] = (),
    most: int = 10_000_000,
    mirror: Callable[[StateT], StateT] | None = None,
) -> Result[StateT]:
    """Visit every state, but about ``most``. With ``wanted``, stop as soon as all those violations
    are found.

    ``steps`` are the names and ends of all steps from a state, and ``violations`` are those of one
    step. ``mirror`` returns a state with two members exchanged, if the model makes no difference
    between them and ``first`` is its own mirror image. Then only one of the two states is visited,
    and both are counted.
    """
    origins: dict[StateT, tuple[StateT, str] | None] = {first: None}
    queue = [first]
    result = Result[StateT](1, {}, set())
    wanted = frozenset(wanted)
    while queue and len(origins) < most:
        following: list[StateT] = []
        for state in queue:
            for name, end in steps(state):
                result.taken.add(name)
                for violation in violations(state, name, end):
                    if violation not in result.found:
                        result.found[violation] = [*_trace(origins, state), name]
                if wanted and result.found.keys() >= wanted:
                    return result
                if end in origins:
                    continue
                if mirror is not None and (other := mirror(end)) != end:
                    if other in origins:
                        continue
                    result.states += 1
                result.states += 1
                origins[end] = (state, name)
                following.append(end)
        queue = following
    return result


def _trace(origins: dict[StateT, tuple[StateT, str] | None], state: StateT) -> list[str]:
    names: list[str] = []
    link = origins[state]
    while link is not None:
        state, name = link
        names.append(name)
        link = origins[state]
    return names[::-1]


__all__ = ["Result", "explore"]
