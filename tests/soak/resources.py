"""Memory, descriptors and threads of each member, and ZooKeeper's watches, every few seconds.

The sampler has its own thread. ``table`` only reads the file.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any, Self

from tests.soak.arena import Arena

EVERY = 5.0
WARM_UP = 120.0
"""The first seconds of a member, which do not count because its buffers and caches fill."""
LIMIT = 0.05
"""The largest share by which memory may grow."""
SPARE = {"descriptors": 1.5, "threads": 1.5, "watches": 1.5}
"""Allowed differences of each measure. A member has a thread for each broker that leads its
partitions."""


class Sampler:
    """Writes one line of JSON for each sample, in a ``with`` statement."""

    def __init__(self, arena: Arena, path: Path) -> None:
        self._arena = arena
        self._path = path
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="resources", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(10)

    def _run(self) -> None:
        with self._path.open("w") as file:
            while True:
                now = time.time()
                for slot in self._arena.slots:
                    member = slot.member
                    if slot.ours and member.running:
                        one = usage(member.pid)
                        if one:
                            age = now - member.life.began
                            file.write(
                                json.dumps({"at": now, "member": member.name, "age": age} | one)
                                + "\n"
                            )
                watches = self._arena.watches()
                file.write(json.dumps({"at": now, "member": "", "watches": watches}) + "\n")
                file.flush()
                if self._ended.wait(EVERY):
                    return


def usage(pid: int) -> dict[str, int]:
    """The resources of a process according to ``/proc``, or an empty result if it is gone."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            pages = int(file.read().split()[1])
        return {
            "rss": pages * os.sysconf("SC_PAGE_SIZE"),
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
            "threads": len(os.listdir(f"/proc/{pid}/task")),
        }
    except OSError:
        return {}


def growth(values: list[float]) -> float:
    """The share by which the median of the last quarter exceeds that of the first.

    It uses quarters and medians instead of least squares. A fault makes a sample that is far off,
    which changes a line's slope and hardly changes a median.
    """
    quarter = max(1, len(values) // 4)
    first, last = sorted(values[:quarter]), sorted(values[-quarter:])
    low, high = first[quarter // 2], last[quarter // 2]
    return (high - low) / low if low else float(high > 0)


def table(path: Path) -> dict[str, Any]:
    """For each measure the growth during the run. Memory counts by the age of each member that ran
    long enough. The others count by time, for all members together."""
    samples = [json.loads(line) for line in path.read_text().splitlines()]
    members: dict[str, list[dict[str, Any]]] = {}
    for one in samples:
        if one["member"]:
            members.setdefault(one["member"], []).append(one)
    found: dict[str, Any] = {}
    long_lived = {
        name: [s for s in each if s["age"] >= WARM_UP]
        for name, each in members.items()
        if each[-1]["age"] >= 3 * WARM_UP
    }
    for measure in ("rss", "descriptors", "threads"):
        grown = [growth([s[measure] for s in each]) for each in long_lived.values()]
        values = [s[measure] for each in members.values() for s in each if s["age"] >= 20]
        found[measure] = {
            "members": len(grown),
            "growth": round(max(grown), 3) if grown else None,
            "highest": max(values, default=0),
            "median": sorted(values)[len(values) // 2] if values else 0,
        }
    watches = [s["watches"] for s in samples if not s["member"]]
    found["watches"] = {
        "growth": round(growth(watches), 3) if len(watches) >= 8 else None,
        "highest": max(watches, default=0),
        "median": sorted(watches)[len(watches) // 2] if watches else 0,
    }
    return found


def grown(found: dict[str, Any]) -> list[str]:
    """A sentence for each measure that grew by more than ``LIMIT``: memory, descriptors, threads,
    watches."""
    return [
        f"{measure} grew by {values['growth']:.1%} to {values['highest']:,} at most"
        for measure, values in found.items()
        if values["growth"] is not None
        and values["growth"] > LIMIT
        and values["growth"] * values["median"] > SPARE.get(measure, 0)
    ]
