"""Offsets in files: the CSV of ``kafka-consumer-groups``, the JVM's export lines, or JSON. Pure.

The CSV has no heading, and quotes only around a group's name that has a comma or a quote:
``topic,partition,offset`` for one group, ``group,topic,partition,offset`` for several (Kafka 3.9
ConsumerGroupCommand, ``--export`` and ``--reset-offsets --from-file``). JSON is a list of objects
with those names, as ``render`` makes it.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from zkconsumer.admin import offset_files
from zkconsumer.admin.offset_files import OffsetKey
from zkconsumer.core.zookeeper.znodes import is_legal_group, is_legal_topic
from zkconsumer.errors import OffsetsFileError

FORMATS: Final = ("csv", "jvm", "json")
_NUMBER = re.compile(r"[0-9]{1,19}")
_JSON: Final = re.compile(r"\[\s*[{\]]")
"""The beginning of a JSON list of objects. The name of a group may begin with ``[``, too."""
_INT32: Final = 2**31 - 1
_INT64: Final = 2**63 - 1
_FAULTS: Final = 100
_FIELDS: Final = ("group", "topic", "partition", "offset")


def render(offsets: Mapping[OffsetKey, int], how: str, one_group: bool = False) -> str:
    """Return the text of a file of offsets. ``how``: the format. ``one_group``: leave out the CSV's
    group column."""
    if how == "jvm":
        return offset_files.render(offsets)
    rows = [(*key, offsets[key]) for key in sorted(offsets)]
    if how == "json":
        lines = ",\n".join(json.dumps(dict(zip(_FIELDS, row, strict=True))) for row in rows)
        return f"[\n{lines}\n]\n" if rows else "[]\n"
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(row[1:] if one_group else row for row in rows)
    return text.getvalue()


def parse(name: str, data: bytes, group: str | None = None) -> dict[OffsetKey, int]:
    """Return the offsets in a file, whose format may be any of ``FORMATS``.

    ``group``: the group, if the file has no group names. Raises OffsetsFileError, which names each
    invalid line. A second offset for a partition is invalid.
    """
    if len(data) > offset_files.MAX_FILE_BYTES:
        raise OffsetsFileError([f"{name} is larger than {offset_files.MAX_FILE_BYTES} bytes"])
    if data.removeprefix(b"\xef\xbb\xbf").startswith(b"/"):
        return offset_files.parse(name, data)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise OffsetsFileError([f"{name}:{line}: is not UTF-8"]) from None
    rows = _json_rows(name, text) if _JSON.match(text) else _csv_rows(text, group)
    offsets: dict[OffsetKey, int] = {}
    faults: list[str] = []
    for where, row in rows:
        key, offset, fault = _row(row)
        if fault is None and key in offsets:
            fault = "repeats a partition of an earlier line"
        if fault is not None:
            faults.append(f"{name}:{where}: {fault}")
            if len(faults) == _FAULTS:
                break
        elif key is not None:
            offsets[key] = offset
    if faults:
        raise OffsetsFileError(faults)
    return offsets


def _csv_rows(text: str, group: str | None) -> Iterable[tuple[int, list[str]]]:
    for number, line in enumerate(text.split("\n"), 1):
        row = line.removesuffix("\r")
        if row:  # Java's own export ends with an empty line
            try:
                cells = next(csv.reader([row])) if '"' in row else row.split(",")
            except csv.Error:  # a carriage return inside the line
                cells = []
            yield number, [group, *cells] if len(cells) == 3 and group is not None else cells


def _json_rows(name: str, text: str) -> Iterable[tuple[int, list[Any]]]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise OffsetsFileError([f"{name} is not JSON"]) from None
    for number, item in enumerate(document, 1):
        if (
            not isinstance(item, dict)
            or type(item.get("offset")) is not int
            or type(item.get("partition")) is not int
        ):
            yield number, []
        else:
            yield number, [str(item.get(field)) for field in _FIELDS]


def _row(row: list[str]) -> tuple[OffsetKey | None, int, str | None]:
    """Return a row's key, its offset and its fault."""
    if len(row) != 4:
        return None, 0, "is not group,topic,partition,offset (or, with one --group, without group)"
    for kind, name, legal in (("group", row[0], is_legal_group), ("topic", row[1], is_legal_topic)):
        if not legal(name):
            return None, 0, f"{name[:60]!a} is not a valid name of a {kind}"
    numbers = row[2:]
    if any(_NUMBER.fullmatch(text) is None for text in numbers):
        return None, 0, "partition and offset are not plain decimal numbers"
    partition, offset = map(int, numbers)
    if partition > _INT32 or offset > _INT64:
        return None, 0, "partition or offset is too large"
    return OffsetKey(row[0], row[1], partition), offset, None
