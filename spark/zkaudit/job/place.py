"""The directory ``OUT`` of an audit: its contents, and how a finished audit is published. No
Spark.

``tables`` is a link to ``tables-NNNNNN``, the newest finished audit's tables and summary. Changing
the link replaces everything for readers atomically. ``summary.json`` is a copy of the summary,
``report.html`` is written afterwards, and ``staging`` exists while an audit runs. A writer holds
the lock ``.lock``. Driver's thread.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from zkaudit.errors import AuditError, InputMissingError
from zkaudit.tables.catalog import SCHEMA_VERSION

_NUMBERED: Final = re.compile(r"tables-([0-9]{6,})")
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


def local(place: str) -> Path:
    """Return a place as a local path. Raises AuditError if it is a URL."""
    url = _URL.match(place)
    if url is None:
        return Path(place)
    fix = "mount it and give its path"
    if url[1].lower() == "file":
        fix = "give the path without file:"
    raise AuditError(f"{place} is a URL, and only local or mounted directories work here: {fix}")


def prepare(place: str) -> Path:
    """Create the directory of an audit.

    Raises AuditError if it contains other files, or if ``place`` is a URL.
    """
    out = local(place)
    if out.exists() and not out.is_dir():
        raise AuditError(f"{out} is not a directory: choose another --out")
    if out.exists() and any(out.iterdir()) and not (out / "summary.json").is_file():
        raise AuditError(f"{out} is not empty and contains no audit: choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "summary.json").exists():
        write_text(out / "summary.json", "{}")
    return out


@contextmanager
def locked(place: str | Path) -> Iterator[Path]:
    """Create the directory of an audit, and keep other processes from writing to it.

    Raises the errors of ``prepare``, and AuditError while another audit, stream or report writes
    there.
    """
    try:
        import fcntl
    except ModuleNotFoundError:
        raise AuditError("an audit runs on Linux and macOS: on Windows use WSL") from None
    out = prepare(str(place))
    descriptor = os.open(out / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 1000).decode("utf-8", "replace") or "another process"
            raise AuditError(
                f"{out}: {holder} is writing an audit there: wait until it has finished, or choose "
                "another --out"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        _copy_summary(out)
        yield out
    finally:
        os.close(descriptor)  # gives the lock back


def _copy_summary(out: Path) -> None:
    """Copy the summary of the newest tables, if a process was killed before it did so."""
    newest, copy = out / "tables" / "summary.json", out / "summary.json"
    if newest.exists() and (text := newest.read_text()) != copy.read_text():
        write_atomically(copy, text)


def write_atomically(file: Path, text: str) -> None:
    """Write a file so that readers see either the old text or the new one, never a part."""
    part = file.with_name(f".{file.name}")
    write_text(part, text)
    part.replace(file)


def write_text(file: Path, text: str) -> None:
    """Write a file. If the disk is full, the OSError names the file, unlike Python's own."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from None


def new_tables(out: Path) -> Path:
    """Return the directory in ``out`` for the tables of a new audit."""
    found = [_NUMBERED.fullmatch(place.name) for place in out.iterdir()]
    number = max((int(name[1]) for name in found if name), default=0) + 1
    return out / f"tables-{number:06}"


def publish(out: Path, tables: Path, summary: dict[str, Any], keep: bool) -> None:
    """Publish a finished audit. Readers of ``out`` then see all its tables at once.

    ``keep``: keep the previous tables until the next audit, for readers that have opened them.
    """
    text = json.dumps(summary, indent=1) + "\n"
    write_text(tables / "summary.json", text)
    link = out / "tables"
    before = os.readlink(link) if link.is_symlink() else ""
    new = out / ".tables"
    new.unlink(missing_ok=True)
    new.symlink_to(tables.name)
    new.replace(link)
    write_atomically(out / "summary.json", text)
    stay = {tables.name, before if keep else ""}
    for place in list(out.iterdir()):
        if _NUMBERED.fullmatch(place.name) and place.name not in stay:
            shutil.rmtree(place)


def finished(place: str | Path) -> tuple[dict[str, Any], Path]:
    """Return the summary and the tables of the newest finished audit.

    Raises InputMissingError if there is none, and AuditError if the schema version of its tables is
    missing or not this release's.
    """
    out = Path(place)
    tables = (out / "tables").resolve()  # the link's current target; it may change later
    file = tables / "summary.json"
    try:
        text = (file if file.exists() else out / "summary.json").read_text()
        summary: dict[str, Any] = json.loads(text)
    except (OSError, ValueError) as error:
        raise InputMissingError(f"{out}: there is no audit in this directory: {error}") from None
    if not isinstance(summary, dict) or "findings" not in summary:
        raise InputMissingError(f"{out}: the audit did not finish: run it again")
    version = summary.get("schema_version")
    if version != SCHEMA_VERSION:
        has = "no schema version" if version is None else f"schema version {version}"
        raise AuditError(
            f"{out}: the audit's tables have {has}, but this zkaudit reads version "
            f"{SCHEMA_VERSION}: run the audit again"
        )
    return summary, tables
