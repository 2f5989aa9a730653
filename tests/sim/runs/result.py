"""How a simulated run ended, and the command that plays it again. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from zkconsumer.sim.judges.invariants import Violation

EVENTS: Final = 200
"""How many faults a run has by default."""

ScenarioT = TypeVar("ScenarioT")


@dataclass(slots=True)
class Result(Generic[ScenarioT]):
    """One run. ``faults`` counts the injected faults, by kind."""

    coordination: str
    """One of ``tests.sim.runs.run.KINDS``."""
    seed: int
    events: int
    legacy: bool
    """Whether a member with exact legacy behaviour was requested."""
    violations: list[Violation]
    faults: dict[str, int]
    deliveries: int
    history: list[str] | None
    scenario: ScenarioT

    @property
    def replay(self) -> str:
        """The command that plays this run again."""
        return (
            f".venv/bin/python -m tests.sim --coordination {self.coordination} "
            f"--seed {self.seed} --events {self.events}{' --legacy' if self.legacy else ''}"
        )

    def __str__(self) -> str:
        """The verdict, for people."""
        if not self.violations:
            return f"no rule was broken; {self.deliveries} records were delivered"
        lines = [f"  {violation}" for violation in self.violations[:10]]
        more = len(self.violations) - len(lines)
        lines += [f"  and {more} more"] if more else []
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        return "\n".join(
            ["rules were broken:", *lines, f"after {faults}", f"replay: {self.replay}"]
        )
