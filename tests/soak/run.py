"""One run from the start of the servers to its result. Runs on the main thread."""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.soak import audit, judge, recovery, resources
from tests.soak.arena import COMMIT_INTERVAL, SESSION, Arena, Settings
from tests.soak.faults import (
    ALONE_SECONDS,
    HEAL_SECONDS,
    JUDGED_SECONDS,
    Plan,
    Planned,
    carry_out,
    storm,
)
from tests.soak.history import FaultRecord, History, load, read_messages
from tests.soak.kinds import KINDS

DRAIN_SECONDS = 60.0
"""How long the group may take to deliver the remaining messages after the last fault."""


class Run:
    """Runs one plan on one group, and judges the result."""

    def __init__(
        self,
        settings: Settings,
        rounds: int | None,
        every: float | None,
        only: frozenset[str] = frozenset(),
        quiet: bool = False,
    ) -> None:
        self.settings = settings
        self._rounds = rounds
        self._every = every or 0.0
        self._only = only
        self._quiet = quiet
        jvms = KINDS[settings.kind].jvm_members(settings.members)
        survivors = min(2, settings.members - jvms - 1) if every else 0
        self.plan = Plan(settings.seed, settings.kind, settings.members, jvms, survivors)
        self._began = time.monotonic()
        self._started = datetime.now(UTC)
        self._disturbed = 0.0

    def say(self, text: str) -> None:
        """Print one line of progress."""
        if not self._quiet:
            sys.stdout.write(f"{time.monotonic() - self._began:7.1f} s  {text}\n")
            sys.stdout.flush()

    def show_plan(self) -> None:
        """Print the first cycles."""
        for number in range(1, 4):
            sys.stdout.write(f"storm {number}\n")
            for planned in self.plan.storm():
                sys.stdout.write(f"  {planned}\n")
            sys.stdout.write(f"alone\n  {self.plan.alone()}\n")

    def play(self) -> dict[str, Any]:
        """Run everything, and return the result, which is also in ``result.json``."""
        settings = self.settings
        self.say(
            f"{settings.kind}, seed {settings.seed}: {settings.members} members, "
            f"{settings.partitions} partitions, {settings.rate} messages a second"
            + (f", broken: {settings.broken}" if settings.broken else "")
        )
        arena = Arena(settings)
        try:
            arena.start()
            self.say("all members deliver")
            history = History(
                settings.kind,
                SESSION,
                COMMIT_INTERVAL,
                settings.partitions,
                lives=arena.lives,
                faults=arena.faults,
            )
            with resources.Sampler(arena, arena.folder / "resources.jsonl"):
                began = time.monotonic()
                self._disturb(arena, history)
                self._disturbed = time.monotonic() - began
                self._drain(arena, history)
            history.ended = time.time()
            audit.copy_logs(arena)
            self._leave(arena)
            if KINDS[settings.kind].member == "coordinator":
                audit.copy_offsets(arena)
            if settings.audit and KINDS[settings.kind].zookeeper:
                self.say("auditing")
                audit.run(arena, history)
        finally:
            arena.close()
        return self._result(history)

    # -- faults --------------------------------------------------------------------------------

    def _disturb(self, arena: Arena, history: History) -> None:
        if self._rounds is not None:
            self._rounds_of_each(arena, history)
        elif self._every:
            self._one_by_one(arena, history)
        else:
            self._cycles(arena, history)

    def _cycles(self, arena: Arena, history: History) -> None:
        until = time.monotonic() + self.settings.seconds
        number = 0
        while time.monotonic() < until:
            number += 1
            faults = self.plan.storm()
            self.say(f"storm {number}")
            for planned in faults:
                self._note(f"storm {number}: {planned}")
            for record in storm(arena, faults):
                self._show(record)
            self._settle(arena, history, HEAL_SECONDS + JUDGED_SECONDS)
            self._alone(arena, history, self.plan.alone(), ALONE_SECONDS)

    def _rounds_of_each(self, arena: Arena, history: History) -> None:
        for number in range(self._rounds or 0):
            self.say(f"round {number + 1}")
            for planned in self.plan.every():
                names = {planned.kind, f"{planned.kind}: {planned.variant}"}
                if self._only and names.isdisjoint(self._only):
                    continue
                self._alone(arena, history, planned, HEAL_SECONDS)

    def _one_by_one(self, arena: Arena, history: History) -> None:
        """Start one fault at this interval, even if the previous one has not ended."""
        faults = [
            replace(self.plan.one(), at=number * self._every)
            for number in range(int(self.settings.seconds / self._every))
        ]
        for planned in faults:
            self._note(str(planned))
        for record in storm(arena, faults):
            self._show(record)
        self._settle(arena, history, HEAL_SECONDS + JUDGED_SECONDS)

    def _alone(self, arena: Arena, history: History, planned: Planned, seconds: float) -> None:
        self._note(f"alone: {planned}")
        self._show(carry_out(arena, planned, alone=True))
        self._settle(arena, history, seconds)

    def _settle(self, arena: Arena, history: History, seconds: float) -> None:
        """Wait without faults. Members that have exited are replaced."""
        began = time.time()
        for slot in arena.slots:
            with slot.lock:
                slot.revive()
        time.sleep(seconds)
        history.quiet.append((began, time.time()))

    def _note(self, text: str) -> None:
        with (self.settings.out / "plan.txt").open("a") as plan:
            plan.write(text + "\n")

    def _show(self, record: FaultRecord) -> None:
        seen = record.evidence or f"NOT DELIVERED: {record.reason}"
        who = ", ".join(record.members) if len(record.members) < 3 else ""
        self.say(f"{record.kind} {record.variant} {who}: {seen}")

    # -- the end -------------------------------------------------------------------------------

    def _drain(self, arena: Arena, history: History) -> None:
        """Wait until everything acknowledged is delivered, or the time is up."""
        arena.stop_producer()
        self.say("the producer has ended; draining")

        def missing() -> int:
            for slot in arena.slots:
                if not slot.ours:
                    slot.member.note()
            history.acked.clear()
            history.delivered.clear()
            read_messages(history, arena.ledgers)
            return len(judge.missing(history))

        left = -1
        until = time.monotonic() + DRAIN_SECONDS
        while left and time.monotonic() < until:
            time.sleep(1.0)
            left = missing()
        self.say(f"{left} messages are missing")

    def _leave(self, arena: Arena) -> None:
        """All members leave. A hung one is recorded."""

        def leave(member: Any) -> None:
            if member.running:
                member.leave()

        threads = [threading.Thread(target=leave, args=(s.member,)) for s in arena.slots]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _result(self, history: History) -> dict[str, Any]:
        settings = self.settings
        history.acked.clear()
        history.delivered.clear()
        read_messages(history, settings.out / "ledgers")
        audit.read(settings.out, history)
        history.save(settings.out / "history.json")
        used = resources.table(settings.out / "resources.jsonl")
        verdict = judge.judge(history, resources.grown(used) if self._every else ())
        result = {
            "settings": asdict(settings) | {"out": str(settings.out.name)},
            "mode": "recovery" if self._rounds is not None else "every" if self._every else "soak",
            "began": self._started.strftime("%Y-%m-%dT%H:%M"),
            "rounds": self._rounds,
            "every": self._every,
            "only": sorted(self._only),
            "seconds": round(time.monotonic() - self._began, 1),
            "disturbed": round(self._disturbed, 1),
            "faults": recovery.counted(history),
            "recovery": recovery.table(history),
            "resources": used,
            **verdict,
        }
        (settings.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
        self._print(result)
        return result

    def _print(self, result: dict[str, Any]) -> None:
        faults = result["faults"].values()
        self.say(", ".join(f"{name} {value}" for name, value in result["counts"].items()))
        seen, tried = (sum(one[key] for one in faults) for key in ("delivered", "planned"))
        self.say(f"{seen} faults seen of {tried}")
        for fault, values in result["recovery"].items():
            self.say(f"recovery {fault}: {values}")
        for line in shown(result):
            self.say(line)


def shown(result: dict[str, Any]) -> list[str]:
    """One line for each violated rule, with its first violation."""
    lines = []
    for rule, count in result["violations_by_rule"].items():
        first = next(one for one in result["violations"] if one["rule"] == rule)
        lines.append(f"VIOLATION {rule}: {count}; {first['text']}")
    return lines or ["no violation"]


def judge_again(folder: Path) -> dict[str, Any]:
    """Judge a run again from its files."""
    history = load(folder / "history.json")
    read_messages(history, folder / "ledgers")
    for part in (
        history.claims,
        history.registrations,
        history.expelled,
        history.lowered,
        history.foreign,
    ):
        part.clear()
    history.commits = 0
    audit.read(folder, history)
    file = folder / "result.json"
    result = json.loads(file.read_text()) | judge.judge(history)
    result |= {"faults": recovery.counted(history), "recovery": recovery.table(history)}
    file.write_text(json.dumps(result, indent=1) + "\n")
    return result
