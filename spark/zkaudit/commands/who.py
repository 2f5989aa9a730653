"""``zkaudit who``."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from zkaudit.commands.inputs import server_logs_option
from zkaudit.commands.question import (
    ArgumentsFirst,
    Clock,
    iso,
    narrow,
    question_options,
    say,
)
from zkaudit.text import hex_of, printable
from zkconsumer.console.collector import no_collector

if TYPE_CHECKING:
    from zkaudit.group import Lifetime
    from zkaudit.local.events import Session
    from zkaudit.local.who import Answer

_LABEL = 10


def _partition(_: click.Context, __: click.Parameter, text: str) -> tuple[str, int]:
    topic, dash, number = text.rpartition("-")
    if not dash or not topic or not number.isascii() or not number.isdigit():
        raise click.BadParameter(f"{text!r} is not TOPIC-PARTITION, such as orders-3")
    return topic, int(number)


@click.command("who", cls=ArgumentsFirst)
@click.argument("group")
@click.argument("partition", metavar="TOPIC-PARTITION", callback=_partition)
@question_options
@click.option("--at", metavar="TIME", required=True, help="Show the owner at this time.")
@server_logs_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def who_command(
    group: str,
    partition: tuple[str, int],
    logs: tuple[str, ...],
    servers: int | None,
    allow_damage: bool,
    clock: Clock,
    at: str,
    server_logs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print who owned TOPIC-PARTITION in GROUP at a given time.

    Shows the member, its session, when and how its ownership began and ended, the last committed
    offset, and what the logs do not show. Neither Spark nor Java is needed.
    """
    from zkaudit.local.history import Question
    from zkaudit.local.who import who
    from zkaudit.sources.server_logs import addresses, check

    check(server_logs)
    at = clock.parse(at, "--at")
    with no_collector():
        question = Question(logs, group, servers=servers, allow_damage=allow_damage)
        answers = who(question, *partition, at)
        for answer in answers:
            session = answer.session
            used = set() if session is None else {session.id}
            address = next(iter(addresses(server_logs, used).values()), None)
            if as_json:
                click.echo(json.dumps(_plain(answer, group, at, address)))
            else:
                _print(_rows(answer, group, at, clock, address, bool(server_logs)))
        say(answers[0].history, clock, None, None, as_json)


def _rows(
    answer: Answer, group: str, at: str, clock: Clock, address: str | None, searched: bool
) -> Iterator[tuple[str, str]]:
    """Return the answer as labels and texts."""
    from zkaudit.group import UNKNOWN, Lifetime
    from zkaudit.local.log import written
    from zkaudit.sources.selection import milliseconds

    place = f"{printable(answer.topic)}-{answer.partition} of group {printable(group)}"
    if answer.chroot:
        place += f" below {printable(answer.chroot)}"
    time = clock.shown(milliseconds(at) * 1000)
    yield "partition", f"{place} at {time} ({clock.name}), after transaction {answer.zxid:#x}"
    owner = answer.owner
    if isinstance(owner, Lifetime):
        yield "owner", printable(owner.member or "a consumer id that the logs do not show")
        if (session := answer.session) is not None:
            yield "session", _session(session, clock)
            missing = "the text logs do not name it" if searched else "see --server-logs"
            yield "address", printable(address) if address else f"unknown: {missing}"
        yield "since", _since(owner, clock)
        yield "until", _until(owner, clock, answer.sessions.who(owner.ended_by))
    elif owner is UNKNOWN:
        yield "owner", "unknown"
    elif answer.free_since is not None:
        free = answer.free_since
        yield "owner", f"none since {clock.shown(free.time)}, transaction {free.zxid:#x}"
    else:
        yield "owner", "none, and the logs show no earlier one"
    yield "offset", written(answer.offset, answer.committed, answer.sessions, clock.shown)
    for text in answer.unsure:
        yield "not known", text


def _session(session: Session, clock: Clock) -> str:
    text = f"{hex_of(session.id)}, opened "
    if session.opened_zxid is None:
        return f"{text}at server {session.server} at an unknown time"
    time = clock.shown(session.opened_us)
    return f"{text}{time} at server {session.server}, timeout {session.timeout_ms} ms"


def _since(owner: Lifetime, clock: Clock) -> str:
    from zkaudit.group import UNKNOWN

    if owner.start is UNKNOWN:
        return "before the logs begin, or in a log gap"
    return f"{clock.shown(owner.start.time)}, transaction {owner.start.zxid:#x}"


def _until(owner: Lifetime, clock: Clock, who: str) -> str:
    from zkaudit.group import Ended

    how = {
        Ended.RELEASED: "it released the partition",
        Ended.CLOSED: "its client closed the session",
        Ended.EXPIRED: "its session expired",
        Ended.FOREIGN_DELETE: f"{who} deleted the owner znode",
        Ended.UNKNOWN: "it had ended by then; a log gap hides how",
    }
    if owner.end is None:
        gap = "unknown: a log gap follows" if owner.ended is Ended.UNKNOWN else ""
        return gap or "it still owned the partition when the logs end"
    return f"{clock.shown(owner.end.time)}, transaction {owner.end.zxid:#x}: {how[owner.ended]}"


def _print(rows: Iterator[tuple[str, str]]) -> None:
    width = narrow()
    for label, text in rows:
        line = f"{label:{_LABEL}} {text}"
        if width is not None and len(line) > width:
            indent = " " * (_LABEL + 1)
            line = textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False)
        click.echo(line)


def _plain(answer: Answer, group: str, at: str, address: str | None) -> dict[str, Any]:
    """Return the answer for JSON: zxids and sessions in hexadecimal, times as ISO in UTC."""
    from zkaudit.group import UNKNOWN, Lifetime, Moment, Write

    owner, free, commit = answer.owner, answer.free_since, answer.committed
    known = owner if isinstance(owner, Lifetime) else None
    start = known.start if known is not None and isinstance(known.start, Moment) else None
    end = None if known is None else known.end
    offset = answer.offset if isinstance(answer.offset, Write) else None
    return {
        "chroot": answer.chroot,
        "group_id": group,
        "topic": answer.topic,
        "partition": answer.partition,
        "at": at,
        "zxid": f"{answer.zxid:#x}",
        "owner_state": "unknown" if owner is UNKNOWN else "none" if owner is None else "owner",
        "member": known and known.member,
        "session": _hex(None if known is None else known.session),
        "address": address,
        "start_zxid": _hex(start and start.zxid),
        "start_time": iso(start and start.time),
        "end_zxid": _hex(end and end.zxid),
        "end_time": iso(end and end.time),
        "ended": known and known.ended.value,
        "ended_by": _hex(None if known is None else known.ended_by),
        "free_since_zxid": _hex(free and free.zxid),
        "committed_offset": offset and offset.offset,
        "offset_zxid": _hex(offset and offset.zxid),
        "offset_time": iso(offset and offset.time),
        "offset_session": _hex(commit and commit.session),
        "not_known": list(answer.unsure),
    }


def _hex(number: int | None) -> str | None:
    return None if number is None else hex_of(number)
