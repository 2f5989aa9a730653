"""``zkconsumer tree``: shows a group's znodes, once or whenever they change.

Everything runs on the main thread.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

import click

from zkconsumer.admin.printable import printable
from zkconsumer.admin.tools import GroupTools
from zkconsumer.config.tool_security import SecurityConfig
from zkconsumer.console.exclusive import only_with
from zkconsumer.console.repeating import repeat
from zkconsumer.console.tables import zookeeper_options
from zkconsumer.console.times import duration_option
from zkconsumer.core.zookeeper.ops import Node, session_text
from zkconsumer.errors import UnknownGroupError, ZkConsumerError

_LONGEST: Final = 120
Tree = Mapping[str, Node]


@click.command()
@click.argument("group")
@click.option(
    "--watch", is_flag=True, help="Keep running, and print each change of a znode as a line."
)
@duration_option(
    "--every",
    default=0.5,
    least=0.05,
    help="With --watch: how often to read the tree. Changes that are undone in between are not "
    "shown.",
)
@duration_option("--seconds", help="With --watch: stop after this time.")
@zookeeper_options
def tree(
    group: str,
    watch: bool,
    every: float,
    seconds: float | None,
    zookeeper: str,
    timeout: float,
    security: SecurityConfig,
) -> int:
    """Show the znodes of a group in ZooKeeper, with their data.

    An ephemeral znode is shown with its session. It disappears when that session ends. With
    --watch, lines begin with + (created), - (deleted) or ~ (changed). Stop it with Ctrl-C.
    """
    if not watch:
        only_with("--watch", "every", "seconds")
    before: Tree | None = None

    def look() -> Tree:
        try:
            return tools.tree(group)
        except UnknownGroupError:
            if before is None:
                raise
            return {}  # it was deleted meanwhile

    def show(now: Tree, _at: float) -> bool:
        nonlocal before
        seen = before
        lines = drawn(now) if seen is None else (f"{_clock()} {x}" for x in changes(seen, now))
        for line in lines:
            click.echo(line)
        before = now
        sys.stdout.flush()
        return not watch

    def failed(error: ZkConsumerError) -> None:
        click.echo(f"{_clock()} {printable(str(error))}; reading again", err=True)

    with GroupTools(zookeeper, timeout, security) as tools:
        return repeat(look, show, failed, every, seconds)


def drawn(tree: Tree) -> Iterator[str]:
    """Yield a tree as lines of text. The first line is the path of its root."""
    paths = list(tree)
    children: dict[str, list[str]] = {}
    for path in paths[1:]:
        children.setdefault(path.rpartition("/")[0], []).append(path)
    waiting = [(path, printable(path), "") for path in paths[:1]]
    while waiting:  # no recursion: the tree may be of any depth
        path, shown, indent = waiting.pop()
        yield shown + _content(tree[path])
        branch, below = "`-- ", "    "  # the last child comes first: it is taken last
        for child in sorted(children.get(path, ()), key=_order, reverse=True):
            name = printable(child.rpartition("/")[2])
            waiting.append((child, f"{indent}{branch}{name}", indent + below))
            branch, below = "|-- ", "|   "


def changes(before: Tree, now: Tree) -> Iterator[str]:
    """Yield a line for each znode that was created or deleted, or whose data changed."""
    for path in sorted({*before, *now}):
        old, new = before.get(path), now.get(path)
        shown = printable(path)
        if new is None:
            yield f"- {shown}"
        elif old is None:
            yield f"+ {shown}{_content(new)}"
        elif old.stat.czxid != new.stat.czxid:  # deleted and created again between two looks
            yield f"- {shown}"
            yield f"+ {shown}{_content(new)}"
        elif old.data != new.data:
            yield f"~ {shown}: {_text(old.data)} -> {_text(new.data)}"


def _order(path: str) -> tuple[int, str]:
    name = path.rpartition("/")[2]
    return (int(name), "") if name.isdecimal() and len(name) < 12 else (-1, name)


def _content(node: Node) -> str:
    text = f": {_text(node.data)}" if node.data else ""
    owner = node.stat.ephemeral_owner
    return f"{text}  (ephemeral, session {session_text(owner)})" if owner else text


def _text(data: bytes) -> str:
    text = printable(data.decode(errors="replace"))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(data)} bytes)"


def _clock() -> str:
    return datetime.now().strftime("%H:%M:%S.%f")[:-3]
