"""Files of the subcommands: offsets from and to them, plans, and how they are written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from zkconsumer.admin.offset_files import OffsetKey
from zkconsumer.admin.tools import GroupTools
from zkconsumer.cli.tables import print_notes
from zkconsumer.core.common.topic_filter import INTERNAL_TOPICS
from zkconsumer.errors import (
    ConfigError,
    OffsetsFileError,
    SessionExpiredError,
    ZkUnavailableError,
    ZooKeeperError,
)
from zkmigrate import offset_csv
from zkmigrate.command_options import Selection, Servers
from zkmigrate.command_output import unlisted_note
from zkmigrate.errors import PlanFileError
from zkmigrate.model import GroupState, Kind, Store
from zkmigrate.plan import shown
from zkmigrate.progress import Progress

_AT_ONCE: Final = 100


def given_offsets(file: str, which: Selection) -> dict[str, dict[Any, int]]:
    """Return the chosen groups' offsets in a file, by group and partition.

    One ``--group`` says whose they are when the file does not name groups. Raises
    OffsetsFileError, and MigrationError for a group that is not in the file.
    """
    group = which.groups[0] if len(which.groups) == 1 else None
    found: dict[str, dict[Any, int]] = {}
    for key, offset in offset_csv.parse(file, read_file(file), group).items():
        found.setdefault(key.group, {})[(key.topic, key.partition)] = offset
    if not found:
        raise OffsetsFileError([f"{file}: holds no offset"])
    chosen = which.among(sorted(found), file, "name groups of the file, or give --all")
    return {name: found[name] for name in chosen}


def offsets_in_zookeeper(
    which: Selection, servers: Servers, progress: Progress
) -> tuple[dict[OffsetKey, int], int]:
    """Return offsets in ZooKeeper, and how many groups cannot be read. No broker is asked."""
    found: dict[OffsetKey, int] = {}
    left_out = 0
    with GroupTools(servers.zookeeper, servers.timeout) as tools:
        names = which.of_store(tools.group_names, Store.ZOOKEEPER)
        progress.total = len(names)
        for start in range(0, len(names), _AT_ONCE):
            chunk = names[start : start + _AT_ONCE]
            for group, offsets in _export(tools, chunk):
                found.update(offsets or {})
                left_out += offsets is None
                progress.group(group, offsets is not None)
        print_notes(tools.notes)
    return found, left_out


def _export(
    tools: GroupTools, groups: list[str]
) -> Iterator[tuple[str, Mapping[OffsetKey, int] | None]]:
    """Yield each group's offsets, ``None`` where ZooKeeper refuses to show them."""
    noted = len(tools.notes)
    try:
        offsets = tools.export(groups)
    except (ZkUnavailableError, SessionExpiredError):
        raise
    except ZooKeeperError as error:
        del tools.notes[noted:]
        if len(groups) == 1:
            tools.notes.append(f"group {groups[0]} is left out: {error}")
            yield groups[0], None
        else:
            for group in groups:
                yield from _export(tools, [group])
        return
    by_group: dict[str, dict[OffsetKey, int]] = {group: {} for group in groups}
    for key, offset in offsets.items():
        by_group[key.group][key] = offset
    yield from by_group.items()


def offsets_in_kafka(
    which: Selection, servers: Servers, progress: Progress
) -> tuple[dict[OffsetKey, int], int]:
    """Return offsets in Kafka, and how many groups cannot be read.

    Groups that ZooKeeper could not hold are left out and noted.
    """
    from zkmigrate.snapshot import Stores  # loads kafka-python, which takes long

    found: dict[OffsetKey, int] = {}
    left_out = 0
    notes: list[str] = []
    with Stores(*servers, on_wait=progress.waiting) as stores:
        print_notes(stores.faults)
        chosen = which.of_store(partial(stores.group_names, Store.KAFKA), Store.KAFKA)
        progress.total = len(chosen)
        hidden: frozenset[str] = frozenset()
        for state in stores.states(chosen, {}, False):
            if isinstance(state, GroupState):
                name, good = state.group, True
                hidden = state.hidden - INTERNAL_TOPICS
                for tp, stored in state.kafka.items():
                    found[OffsetKey(state.group, *tp)] = stored.offset
            else:
                name, problem = state
                good = problem.kind is Kind.BAD_NAME
                left_out += not good
                notes.append(f"{problem.what}; it is left out")
            progress.group(name, good)
        if hidden:
            notes.append(f"the broker's access lists hide offsets of {shown(sorted(hidden))}")
    if stores.unlisted:
        left_out += 1
        notes.append(unlisted_note(stores.unlisted))
    print_notes(notes)
    return found, left_out


def read_file(file: str) -> bytes:
    """Return a file's content. Raises PlanFileError."""
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise PlanFileError(f"{file}: {error.strerror}") from None


def write_new(option: str, path: str, lines: Iterable[str]) -> None:
    """Write a new file whole, or leave none: temporary file, fsync, link."""
    temporary = f"{path}.{os.getpid()}.tmp"
    if os.path.lexists(path):
        raise ConfigError([f"{option}: {path} exists: name a new file"])
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
            try:
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
                os.link(temporary, path)
            finally:
                os.unlink(temporary)
    except OSError as error:
        raise ConfigError([f"{option}: {path}: {error.strerror}"]) from None
