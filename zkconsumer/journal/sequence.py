"""Draws one member's journal as a Mermaid sequence diagram, divided into the five steps. Pure.

The steps are those of a rebalance in ZooKeeper (docs/explanation/five-steps.md): stop, release,
assign, claim, start. A member on the coordinator takes the same steps in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from zkconsumer.journal.counts import kind_of
from zkconsumer.journal.recorder import Entry

_DULL: Final = frozenset({"Exists"})


def sequence(entries: Iterable[Entry], member: str) -> str:
    """Return the diagram of ``member``'s lines; ``entries`` are in chronological order."""
    rows: list[tuple[str, int, str]] = []
    server = "ZooKeeper"
    for entry in entries:
        if entry.get("member") != member or entry["kind"] in ("action", "member"):
            continue
        if "generation" in entry:
            server = "Coordinator"
        if entry["kind"] == "op":
            if entry["name"] not in _DULL:
                asked, result = _asked(entry), entry["result"]
                if rows and rows[-1][0] == asked and rows[-1][2] == result:
                    rows[-1] = (asked, rows[-1][1] + 1, result)
                else:
                    rows.append((asked, 1, result))
        elif (note := _NOTES.get((entry["kind"], entry["name"]))) and (text := note(entry)):
            rows.append((text, 0, ""))
    parts = ["sequenceDiagram", "    participant M as Member", f"    participant S as {server}"]
    for text, times, result in rows:
        if not times:
            parts.append(f"    {text}")
            continue
        often = f" (x {times})" if times > 1 else ""
        parts.append(f"    M->>S: {text}{often}")
        if result != "ok":
            parts.append(f"    S-->>M: {result}")
    return "\n".join(parts) + "\n"


def members_of(entries: Iterable[Entry]) -> list[str]:
    """Return the members in a journal, in order of appearance."""
    return list(dict.fromkeys(e["member"] for e in entries if "member" in e and e["kind"] != "run"))


def _asked(entry: Entry) -> str:
    if entry["name"] == "Multi":
        return f"transaction, {entry['changes']} changes"
    what = kind_of(entry["name"], entry.get("path", ""))
    if entry.get("generation", -1) >= 0:
        return f"{what}, generation {entry['generation']}"
    return f"{what}, {entry['reads']} znodes" if entry["reads"] > 1 else what


def _partitions(entry: Entry) -> str:
    return ", ".join(entry.get("partitions", ())) or "nothing"


def _step(text: str) -> Callable[[Entry], str]:
    return lambda entry: f"Note over M: {text}: {_partitions(entry)}"


def _assigned(entry: Entry) -> str:
    return f"Note over M: 3 assign, from {len(entry.get('members', ()))} registrations"


def _joined(entry: Entry) -> str:
    members = entry.get("members", ())
    if not members:
        return "Note over M: 3 assign: the leader does"
    return f"Note over M: 3 assign, as leader, for {len(members)} members"


def _mode(entry: Entry) -> str:
    """Draw a change of the mode. Other reports are not drawn."""
    return f"Note over M,S: {entry['detail']}" if entry.get("result") == "mode" else ""


_NOTES: Final[dict[tuple[str, str], Callable[[Entry], str]]] = {
    ("event", "Changed"): lambda entry: f"S-->>M: watch: {entry['path']} has changed",
    ("command", "StopFetching"): _step("1 stop"),
    ("command", "Release"): _step("2 release"),
    ("command", "Forget"): _step("2 release, by joining without"),
    ("event", "ViewLoaded"): _assigned,
    ("event", "Joined"): _joined,
    ("command", "ClaimPartitions"): _step("4 claim"),
    ("event", "Synced"): _step("4 given"),
    ("command", "StartFetching"): _step("5 start"),
    ("command", "Drop"): _step("drop"),
    ("command", "Report"): _mode,
    ("event", "AckStored"): lambda entry: f"Note over M: mode acknowledged, {entry['detail']}",
}
