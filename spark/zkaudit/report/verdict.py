"""The report's first lines: what went wrong, as sentences. Pure.

They use counts of findings and the summary, so they do not depend on how many findings fit on the
page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

from zkaudit.findings.kinds import KINDS
from zkaudit.limits import NOT_COVERED, SEVERITIES
from zkaudit.text import in_zone

_EFFECTS: Final = {
    "lost": "Messages were lost",
    "repeated": "Messages were delivered again",
}
NOT_SHOWN: Final = (
    "The logs cannot show messages that auto.offset.reset skipped slowly, messages that a member "
    "committed before it had processed them, or a stall of all members of a group."
)
TOO_LARGE: Final = (
    "a server may not start from this log, unless its jute.maxbuffer is at least that large"
)
"""The effect of a record that is longer than servers read by default."""
CUT_OFF: Final = "the server is writing this log, or it was copied incompletely"
"""Why the last record of a log is incomplete."""
_MOST_GROUPS: Final = 20
"""Largest number of groups in a live move that are named."""
_LEAST: Final = SEVERITIES.index("high")
"""Lowest severity of findings that are described. Others are only counted."""


@dataclass(frozen=True, slots=True)
class Count:
    """The number of findings of one kind, effect and severity.

    ``messages``: how many offsets these findings concern, as far as known. ``unknown``: the number
    of findings for which that is not known.
    """

    severity: str
    kind: str
    effect: str | None
    findings: int
    groups: int
    messages: int
    unknown: int
    proven: bool


def verdict(counts: Sequence[Count], summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the sentences at the top of the report, the worst first. Each has the ``kind`` and
    ``effect`` of its findings; both are null in a sentence about the logs."""
    missing = [count for count in counts if count.kind == NOT_COVERED]
    counts = [count for count in counts if count.kind != NOT_COVERED]
    lines = []
    for effect, text in _EFFECTS.items():
        some = [count for count in counts if count.effect == effect]
        if some:
            lines.append(_line(f"{text}: {_messages(some)}{_where(some)}", some, effect=effect))
    rest = [count for count in counts if count.effect not in _EFFECTS]
    bad = [count for count in rest if SEVERITIES.index(count.severity) <= _LEAST]
    for kind in dict.fromkeys(count.kind for count in bad):
        some = [count for count in bad if count.kind == kind]
        text = KINDS[kind].verdict or kind[:1].upper() + kind[1:]
        lines.append(_line(f"{text}: {_where(some)}", some, kind=kind))
    lines.sort(key=lambda line: SEVERITIES.index(line["severity"]))
    minor = sum(count.findings for count in rest) - sum(count.findings for count in bad)
    if not counts:
        where = "what the logs cover" if missing else "these logs"
        lines.append(_plain(f"No rule found anything wrong in {where}."))
    elif minor:
        other = "other " if lines else ""
        lines.append(_plain(f"{_many(minor, f'{other}finding')} of lower severity."))
    lines += map(_plain, moves(summary))
    if missing:
        number = _many(sum(count.findings for count in missing), "time")
        text = f"No log covers {number} that the audit is about: what happened then is unknown"
        lines.insert(0, _line(text, missing, kind=NOT_COVERED))
    lines = [_plain(text) for text in coverage(summary)] + lines
    begin = summary.get("begin")  # the logs before that were not read, which is not a gap of theirs
    gaps = [gap for gap in summary["log_gaps"] if list(gap) != [0, begin]]
    if gaps:
        lines.append(
            _plain(
                f"The logs have {_many(len(gaps), 'gap')}: what happened there is unknown, and "
                "findings near a gap are marked as inferred."
            )
        )
    if text := rolled_back(summary):
        lines.append(_plain(text))
    if summary["unconfirmed"]:
        lines.append(
            _plain(
                "The logs do not show every transaction on a majority of servers: some may never "
                "have been committed. Add the logs of all servers."
            )
        )
    lines.append(_plain(NOT_SHOWN))
    return lines


def coverage(summary: dict[str, Any], zone: tzinfo | None = UTC, name: str = "UTC") -> list[str]:
    """Return a sentence with the requested time and the time that the logs cover. Times are shown
    in ``zone`` (``None``: the zone of this machine)."""
    found = summary.get("coverage")
    if not found:  # an audit by an older zkaudit
        return []
    start, end = (_seconds(summary[key], zone) for key in ("from", "to"))
    asked = {
        (True, True): f"Asked: {start} to {end}. ",
        (True, False): f"Asked: from {start}. ",
        (False, True): f"Asked: until {end}. ",
    }.get((start is not None, end is not None), "")
    begin, last = (_seconds(summary[key], zone) for key in ("first_time", "last_time"))
    whole, rest = [], []
    for row in found:
        first, until = (_seconds(row[key], zone) for key in ("first_time", "last_time"))
        part = " to ".join(
            [f"from {first}"] * (first != begin) + [f"until {until}"] * (until != last)
        ).replace(" to until ", " to ")
        if row["last_time"] is None:
            rest.append(f"{row['server']} has no transaction")
        elif part:
            rest.append(f"{row['server']} only {part}")
        else:
            whole.append(row["server"])
    by = ", ".join(whole) or "no server alone"
    more = f" ({', '.join(rest)})" if rest else ""
    return [f"{asked}Covered: {begin or '?'} to {last or '?'} {name}, by {by}{more}."]


def doubt(unconfirmed: Sequence[Sequence[int]]) -> str:
    """Return a sentence about transactions that may never have been committed, with what to do;
    empty if there are none."""
    count = sum(last - first + 1 for first, last in unconfirmed)
    if not count:
        return ""
    return (
        f"{count:,} transactions are not in a majority of the servers' logs and may never have "
        "been committed: add the logs of all servers, or use --servers 1 if there is only one"
    )


def _seconds(time: str | None, zone: tzinfo | None) -> str | None:
    """Return an ISO time with a precision of seconds."""
    if time is None:
        return None
    moment = datetime.fromisoformat(time)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return f"{in_zone(moment, zone):%Y-%m-%d %H:%M:%S}"


def rolled_back(summary: dict[str, Any]) -> str:
    """Return a sentence about the transactions that were left out; empty if there are none."""
    count = sum(last - first + 1 for first, last in summary.get("dropped", ()))
    if not count:
        return ""
    were = "was" if count == 1 else "were"
    return (
        f"{_many(count, 'transaction')} {were} rolled back when a leader changed, and "
        f"{'is' if count == 1 else 'are'} left out: the other servers continued without "
        f"{'it' if count == 1 else 'them'}."
    )


def moves(summary: dict[str, Any]) -> list[str]:
    """Return a sentence for each group in a live move: its mode, and which members have not
    acknowledged it."""
    found = summary.get("migrations", [])
    lines = []
    for row in found[:_MOST_GROUPS]:
        late = row["late"]
        more = f" and {len(late) - 3:,} more" if len(late) > 3 else ""
        waiting = f", not acknowledged by {', '.join(late[:3])}{more}" if late else ""
        now = f"in mode {row['mode'] or '?'} since {row['since'] or '?'}{waiting}"
        if row["ended"] == "deleted":
            now = "its mode was deleted"
        elif row["ended"] == "unknown":
            now = f"in mode {row['mode'] or '?'} before a log gap"
        lines.append(f"Live move of group {row['group_id']}: {now}.")
    if len(found) > _MOST_GROUPS:
        lines.append(f"{len(found) - _MOST_GROUPS:,} more groups have a mode for live moves.")
    return lines


def _line(
    text: str, some: Sequence[Count], kind: str | None = None, effect: str | None = None
) -> dict[str, Any]:
    worst = min((count.severity for count in some), key=SEVERITIES.index)
    unsure = "" if all(count.proven for count in some) else " Not all of this is proven."
    return {"severity": worst, "text": f"{text}.{unsure}", "kind": kind, "effect": effect}


def _plain(text: str) -> dict[str, Any]:
    return {"severity": None, "text": text, "kind": None, "effect": None}


def _messages(some: Sequence[Count]) -> str:
    known, unknown = sum(c.messages for c in some), sum(c.unknown for c in some)
    if not unknown:
        return f"{_many(known, 'offset')} in "
    return f"{_many(known, 'offset')} and an unknown number more in " if known else (
        "an unknown number in "
    )  # fmt: skip


def _where(some: Sequence[Count]) -> str:
    groups = max(count.groups for count in some)
    several = "at least " if len(some) > 1 else ""
    found = _many(sum(count.findings for count in some), "finding")
    return f"{found} of {several}{_many(groups, 'group')}"


def _many(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
