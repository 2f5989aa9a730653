"""The report: a self-contained HTML page.

Names come from ZooKeeper, where any client may have chosen them. They are passed as JSON that
cannot end its element, and are shown only as text. The page may run its own script and nothing else
(Content-Security-Policy). Needs no Spark. Runs in the driver's thread.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

from zkaudit.errors import AuditError, InputMissingError
from zkaudit.job.place import finished, write_atomically, write_text
from zkaudit.report.data import Tables, chosen, data_of, groups_in
from zkaudit.text import group_option, names_of, no_group, printable


def write(out: str | Path, group: str | None = None, page: str | Path | None = None) -> Path:
    """Write the report from the tables of an audit. Return its path.

    ``group``: a Python regex, or a result of ``regex_of``; the page shows only the groups whose
    whole name matches. ``page``: the file, by default ``OUT/report.html``. Raises InputMissingError
    if there is no finished audit in ``out`` or no group matches, AuditError if ``group`` is not a
    regex.
    """
    summary, place = finished(out)
    try:
        tables = Tables.at(place)
    except (OSError, ValueError) as error:
        raise InputMissingError(
            f"{out}: the audit in this directory is incomplete: run it again: {error}"
        ) from None
    if group is not None:
        names = _matching(tables, group)
        if not names:
            raise InputMissingError(no_group(group, f"the audit in {out} has"))
        summary, tables = chosen(summary, tables, group, names)
    text = render(data_of(summary, tables))
    if page is None:
        file = Path(out) / "report.html"
        write_atomically(file, text)  # part of a page would count as current
    else:  # maybe a pipe
        file = Path(page)
        write_text(file, text)
    return file


def _matching(tables: Tables, group: str) -> list[str]:
    """Return the names of the audit's groups that match."""
    every = {name for _, name in groups_in(tables)}
    named = names_of(group)
    if named is not None:
        return sorted(every.intersection(named))
    try:
        pattern = re.compile(group)
    except re.error as error:
        raise AuditError(f"{group_option(group)}: not a valid Python regex: {error}") from None
    return sorted(filter(pattern.fullmatch, every))


def render(data: dict[str, Any]) -> str:
    """Return the HTML page. ``data`` may contain any text."""
    files = resources.files("zkaudit.report")
    script = files.joinpath("page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = json.dumps(_visible(data), ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":  # no name can end the element
        text = text.replace(character, f"\\u{ord(character):04x}")
    page = files.joinpath("page.html").read_text(encoding="utf-8")
    return (
        page.replace("{{digest}}", digest).replace("{{script}}", script).replace("{{data}}", text)
    )


def _visible(value: Any) -> Any:
    """Escape characters that are invisible or change text direction, in every string of
    ``value``."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_visible(key): _visible(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_visible(item) for item in value]
    return value
