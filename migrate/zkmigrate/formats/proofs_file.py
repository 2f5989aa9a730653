"""The file of proven offsets with which an interrupted plan between clusters continues.

JSON Lines: the ids of both clusters, then a list for each offset. Lines are appended as offsets are
proven. A last line that is not complete is ignored. One thread.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, NamedTuple, Self

from zkconsumer.core.common.types import TopicPartition
from zkmigrate.errors import PlanFileError

_FORMAT: Final = 1


class Asked(NamedTuple):
    """An offset that was looked for, in another cluster's partition ``other``."""

    tp: TopicPartition
    offset: int
    other: TopicPartition


class Answer(NamedTuple):
    """A proven offset; see ``Translation``. ``doubtful``: not all records are in both logs."""

    offset: int
    compared: int
    why: str
    doubtful: bool


class ProofsFile:
    """Proven offsets, and the file to which new ones are added. Use as a context manager.

    Raises PlanFileError if it is another file or of other clusters, and OSError.
    """

    def __init__(self, path: str, clusters: tuple[str | None, str | None]) -> None:
        head = json.dumps({"proofs": _FORMAT, "clusters": clusters})
        self._file = Path(path).open("a+b")  # noqa: SIM115
        try:
            self._file.seek(0)
            first, *lines = self._file.read().rpartition(b"\n")[0].decode().split("\n")
            if first not in (head, ""):
                raise PlanFileError(f"{path} has no offsets of these two clusters: name a new file")
            self._known = dict(self._parse(line) for line in lines)
        except (ValueError, TypeError):
            self._file.close()
            raise PlanFileError(f"{path} is damaged: delete it, and begin again") from None
        except PlanFileError:
            self._file.close()
            raise
        self._file.truncate(sum(len(line.encode()) + 1 for line in (first, *lines) if line))
        if not first:
            self._write(head)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def get(self, asked: Asked) -> Answer | None:
        """Return an offset that was proven before."""
        return self._known.get(asked)

    def add(self, asked: Asked, answer: Answer) -> None:
        """Add a proven offset."""
        self._write(json.dumps([*asked, *answer]))

    def _write(self, line: str) -> None:
        self._file.write(f"{line}\n".encode())
        self._file.flush()

    @staticmethod
    def _parse(line: str) -> tuple[Asked, Answer]:
        tp, offset, other, *answer = json.loads(line)
        return Asked(TopicPartition(*tp), offset, TopicPartition(*other)), Answer(*answer)
