"""The file of proven offsets from which an interrupted plan between clusters continues.

JSON Lines: the names of both clusters, then a list for each offset, with a checksum. Lines are
appended as offsets are proven. An incomplete last line is ignored. One thread.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, NamedTuple, Self

from zkconsumer.core.common.types import TopicPartition
from zkmigrate.errors import MigrationError, PlanFileError
from zkmigrate.formats import whole_file

_FORMAT: Final = 3


class Asked(NamedTuple):
    """An offset to translate. ``other``: the other cluster's partition.

    ``topics``: the ids of both topics, which change when a topic is recreated; empty if unknown.
    """

    tp: TopicPartition
    offset: int
    other: TopicPartition
    topics: tuple[str, str] = ("", "")


class Answer(NamedTuple):
    """A proven offset in the other cluster. ``doubtful``: some records are only in one of the logs.
    For the other fields, see ``Translation``."""

    offset: int
    compared: int
    why: str
    doubtful: bool


class ProofsFile:
    """A file of proven offsets, to which new ones are added. Use it as a context manager.

    ``clusters``: the ids of both clusters, or the address of one without an id. Raises
    PlanFileError if the file cannot be opened, has another format or is for other clusters.
    """

    def __init__(self, path: str, clusters: tuple[str, str]) -> None:
        head = json.dumps({"proofs": _FORMAT, "clusters": clusters})
        self._path = path
        try:
            self._file = Path(path).open("a+b", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise PlanFileError(f"--proofs: {path}: {error.strerror}") from None
        try:
            length = self._read(head.encode() + b"\n")
            self._file.truncate(length)
            if not length:
                self._write(head.encode() + b"\n")
        except OSError as error:
            self._file.close()
            raise PlanFileError(f"--proofs: {path}: {error.strerror}") from None
        except MigrationError:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def get(self, asked: Asked) -> Answer | None:
        """Return the proven offset, if the file has it. ``None`` if the topics' ids are unknown,
        because the file may be about earlier topics with the same names."""
        return self._known.get(asked) if all(asked.topics) else None

    def add(self, asked: Asked, answer: Answer) -> None:
        """Add a proven offset, if the topics have ids. Raises MigrationError."""
        if all(asked.topics):
            self._write(whole_file.sealed(json.dumps([*asked, *answer])))

    def _read(self, head: bytes) -> int:
        """Read the proven offsets. Return the length of all complete lines."""
        self._file.seek(0)
        whole = self._file.read()
        lines, newline, _cut_off = whole.rpartition(b"\n")
        if not (whole.startswith(head) or head.startswith(whole)):
            raise PlanFileError(
                f"{self._path} is not a proofs file for these two clusters: name a new file"
            )
        self._known = dict[Asked, Answer]()
        for number, line in enumerate(lines.split(b"\n")[1:], 2):
            text = whole_file.unsealed(line)
            if text is None:
                where = f"{self._path}:{number}"
                raise PlanFileError(f"{where} is damaged: delete the file, and start again")
            self._known.update([self._parse(text)])
        return len(lines) + len(newline)

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            raise MigrationError(
                f"--proofs: {self._path}: {error.strerror}: correct this, and run the command again"
            ) from None

    @staticmethod
    def _parse(line: bytes) -> tuple[Asked, Answer]:
        tp, offset, other, topics, *answer = json.loads(line)
        asked = Asked(TopicPartition(*tp), offset, TopicPartition(*other), tuple(topics))
        return asked, Answer(*answer)
