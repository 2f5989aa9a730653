"""Files of the subcommands: offsets from and to them, plans, and how they are written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import click

from zkconsumer.admin.offset_files import OffsetKey
from zkconsumer.admin.tools import GroupTools
from zkconsumer.cli.tables import print_notes
from zkconsumer.core.topic_filter import INTERNAL_TOPICS
from zkconsumer.errors import ConfigError, OffsetsFileError
from zkmigrate import offset_csv
from zkmigrate.command_options import chosen_groups
from zkmigrate.errors import PlanFileError
from zkmigrate.model import GroupState, Store
from zkmigrate.plan import shown


def given_offsets(file: str, groups: tuple[str, ...]) -> dict[str, dict[Any, int]]:
    """Return the offsets in a file, by group and partition. Raises OffsetsFileError."""
    if len(groups) > 1:
        raise click.UsageError("--from-file: name at most one --group")
    given: dict[str, dict[Any, int]] = {}
    for key, offset in offset_csv.parse(
        file, read_file(file), groups[0] if groups else None
    ).items():
        given.setdefault(key.group, {})[(key.topic, key.partition)] = offset
    if not given:
        raise OffsetsFileError([f"{file}: holds no offset"])
    return given


def offsets_in_zookeeper(
    groups: tuple[str, ...], regex: str | None, zookeeper: str, timeout: float
) -> dict[OffsetKey, int]:
    """Offsets in ZooKeeper; no broker is asked."""
    with GroupTools(zookeeper, timeout) as tools:
        found = tools.export(chosen_groups(tools.group_names, Store.ZOOKEEPER, groups, regex))
        print_notes(tools.notes)
    return found


def offsets_in_kafka(
    groups: tuple[str, ...], regex: str | None, zookeeper: str, timeout: float
) -> dict[OffsetKey, int]:
    """Offsets in Kafka; groups that ZooKeeper could not hold are left out and noted."""
    from zkmigrate.snapshot import Stores  # loads kafka-python, which takes long

    with Stores(zookeeper, timeout) as stores:
        chosen = chosen_groups(partial(stores.group_names, Store.KAFKA), Store.KAFKA, groups, regex)
        found: dict[OffsetKey, int] = {}
        hidden: frozenset[str] = frozenset()
        for state in stores.states(chosen, {}, False):
            if isinstance(state, GroupState):
                hidden = state.hidden - INTERNAL_TOPICS
                for tp, stored in state.kafka.items():
                    found[OffsetKey(state.group, *tp)] = stored.offset
            else:
                print_notes([f"{state[1].what}; it is left out"])
        if hidden:
            print_notes([f"the broker's access lists hide offsets of {shown(sorted(hidden))}"])
    return found


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
