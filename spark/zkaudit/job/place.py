"""The directory ``OUT`` of an audit: what is in it, and how a finished audit gets there. No Spark.

``tables`` is a link to the newest finished audit's tables, ``tables-NNNNNN``, which also hold its
summary: one switch of the link replaces everything a reader sees. ``summary.json`` is a copy;
``report.html`` is written behind it; ``staging`` is there while an audit runs. Driver's thread.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, Final

from zkaudit.errors import AuditError, InputMissingError

_NUMBERED: Final = re.compile(r"tables-([0-9]{6,})")
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


def local(place: str) -> Path:
    """Return the path of a place on this machine. Raises AuditError when it is a URL."""
    url = _URL.match(place)
    if url is None:
        return Path(place)
    fix = "mount it and give its path"
    if url[1].lower() == "file":
        fix = "give the path without file:"
    raise AuditError(f"{place}: is a URL, and only local or mounted directories work here: {fix}")


def prepare(place: str) -> Path:
    """Make the directory of an audit.

    Raises AuditError when something else is in it, or when ``place`` is a URL.
    """
    out = local(place)
    if out.exists() and not out.is_dir():
        raise AuditError(f"{out}: is not a directory: choose another --out")
    if out.exists() and any(out.iterdir()) and not (out / "summary.json").is_file():
        raise AuditError(f"{out}: is not empty and holds no audit: choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "summary.json").exists():
        (out / "summary.json").write_text("{}")
    return out


def new_tables(out: Path) -> Path:
    """Return the directory for the tables of an audit that begins."""
    found = [_NUMBERED.fullmatch(place.name) for place in out.iterdir()]
    number = max((int(name[1]) for name in found if name), default=0) + 1
    return out / f"tables-{number:06}"


def publish(out: Path, tables: Path, summary: dict[str, Any], keep: bool) -> None:
    """Make a finished audit the one that readers of ``out`` see, all at once.

    ``keep``: the tables before it stay until the next audit, for readers that have opened them.
    """
    text = json.dumps(summary, indent=1) + "\n"
    (tables / "summary.json").write_text(text)
    link = out / "tables"
    if link.is_dir() and not link.is_symlink():  # of an audit by an older zkaudit
        link.rename(out / "tables-000000")
        before = "tables-000000"
    else:
        before = os.readlink(link) if link.is_symlink() else ""
    new = out / ".tables"
    new.unlink(missing_ok=True)
    new.symlink_to(tables.name)
    new.replace(link)
    copy = out / ".summary.json"
    copy.write_text(text)
    copy.replace(out / "summary.json")
    stay = {tables.name, before if keep else ""}
    for place in list(out.iterdir()):
        if _NUMBERED.fullmatch(place.name) and place.name not in stay:
            shutil.rmtree(place)


def finished(place: str | Path) -> tuple[dict[str, Any], Path]:
    """Return the summary and the tables of the newest finished audit; both are of the same one.

    Raises InputMissingError.
    """
    out = Path(place)
    tables = (out / "tables").resolve()  # what the link means now, whatever it means later
    file = tables / "summary.json"
    try:
        text = (file if file.exists() else out / "summary.json").read_text()
        summary: dict[str, Any] = json.loads(text)
    except (OSError, ValueError) as error:
        raise InputMissingError(f"{out}: holds no audit: {error}") from None
    if "findings" not in summary:
        raise InputMissingError(f"{out}: the audit did not finish: run it again")
    return summary, tables
