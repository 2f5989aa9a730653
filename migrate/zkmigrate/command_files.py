"""Files of the subcommands: offsets from and to them, plans, and how they are written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from zkconsumer.admin.offset_files import OffsetKey
from zkconsumer.admin.tools import GroupTools
from zkconsumer.cli.tables import print_notes
from zkconsumer.core.topic_filter import INTERNAL_TOPICS
from zkconsumer.errors import ConfigError, OffsetsFileError
from zkmigrate import offset_csv
from zkmigrate.command_options import Selection
from zkmigrate.errors import PlanFileError
from zkmigrate.model import GroupState, Store
from zkmigrate.plan import shown


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


def offsets_in_zookeeper(which: Selection, zookeeper: str, timeout: float) -> dict[OffsetKey, int]:
    """Offsets in ZooKeeper; no broker is asked."""
    with GroupTools(zookeeper, timeout) as tools:
        found = tools.export(which.of_store(tools.group_names, Store.ZOOKEEPER))
        print_notes(tools.notes)
    return found


def offsets_in_kafka(which: Selection, zookeeper: str, timeout: float) -> dict[OffsetKey, int]:
    """Offsets in Kafka; groups that ZooKeeper could not hold are left out and noted."""
    from zkmigrate.snapshot import Stores  # loads kafka-python, which takes long

    with Stores(zookeeper, timeout) as stores:
        chosen = which.of_store(partial(stores.group_names, Store.KAFKA), Store.KAFKA)
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
