"""The plan file: JSON Lines that a person can review and ``apply`` carries out.

The first line describes the plan. Each group has one line, followed by one line for each of its
partitions. The last line has the totals and a checksum, so that a truncated or edited file is
detected. A reader refuses everything unknown. As a plan may be large, ``load`` checks all of it,
and its groups are then read again one at a time when they are needed. One thread.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Final, NamedTuple, NoReturn, Protocol

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.znodes import is_legal_group, is_legal_topic
from zkmigrate.errors import PlanFileError
from zkmigrate.formats import decisions_file
from zkmigrate.model import Direction, KafkaOffset, by_topic
from zkmigrate.plan.layout import Place
from zkmigrate.plan.options import Options, covers
from zkmigrate.plan.values import (
    Entry,
    GroupPlan,
    Origin,
    Problem,
    ReadAs,
    StaysBehind,
    There,
    Verdict,
)
from zkmigrate.reasons import Reason

FORMAT: Final = 6
"""Version of the format. It increases when a key changes its meaning, and when a key is added that
changes what ``apply`` does, so that no older version applies the plan without it."""
_HEAD: Final = frozenset(
    {"zkmigrate", "direction", "made_ms", "cluster", "made_with", "at_apply", "to", "from"}
)
_GROUP: Final = frozenset(
    {"group", "verdict", "partitions", "writes", "problems", "notes", "marker", "topics", "skipped",
     "kafka_group", "stays_behind", "ignored", "znodes", "other_client", "layout", "from"}
)  # fmt: skip
_PROBLEM: Final = frozenset({"kind", "what", "names", "fix", "skips"})
_STAYS: Final = frozenset({"topic", "partition", "offset", "why"})
_ENTRY: Final = frozenset(
    {"topic", "partition", "zookeeper", "zk_version", "kafka", "to", "write", "reason", "decided",
     "misplaced", "leader_epoch", "metadata", "there"}
)  # fmt: skip
_TO: Final = frozenset({"servers", "cluster"})
_THERE: Final = frozenset(There._fields)
_LAYOUT: Final = frozenset(ReadAs._fields)
_ORIGIN: Final = frozenset(Origin._fields)
_TOTALS: Final = frozenset({"groups", "partitions", "sha256"})
MAX_LINE_BYTES: Final = 64 * 1024 * 1024
_INT64: Final = 2**63 - 1


class Groups(Protocol):
    """The groups of a plan, in order. Can be iterated repeatedly."""

    def __iter__(self) -> Iterator[GroupPlan]: ...
    def __len__(self) -> int: ...


class To(NamedTuple):
    """The other cluster of a plan. Its offsets are stored in that cluster, or were read from it.
    ``servers``: its brokers. ``cluster``: its id, if known."""

    servers: str
    cluster: str | None


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan for ``apply``. ``digest`` identifies the exact content of the file."""

    direction: Direction
    made_ms: int
    groups: Groups
    digest: str
    at_apply: Options | None = None
    """The decisions for planning each group when it is applied; ``None`` if the groups are
    planned."""
    cluster: str | None = None
    """The id of the plan's cluster, if known."""
    to: To | None = None
    """The other cluster, if offsets are stored there."""
    origin: To | None = None
    """The other cluster, if offsets come from there."""


def render(
    direction: Direction,
    made_ms: int,
    groups: Iterable[GroupPlan],
    at_apply: Options | None = None,
    cluster: str | None = None,
    made_with: Mapping[str, Any] | None = None,
    to: To | None = None,
    origin: To | None = None,
) -> Iterator[str]:
    """Yield the lines of a plan file, each with its newline. ``made_with``: the version and the
    options of the command, for readers of the file."""
    encode = json.JSONEncoder(separators=(", ", ": ")).encode
    first: dict[str, Any] = {
        "zkmigrate": FORMAT,
        "direction": direction.value,
        "made_ms": made_ms,
        "cluster": cluster,
    }
    if made_with is not None:
        first["made_with"] = made_with
    if at_apply is not None:
        first["at_apply"] = decisions_file.to_json(at_apply)
    if to is not None:
        first["to"] = to._asdict()
    if origin is not None:
        first["from"] = origin._asdict()
    digest = hashlib.sha256()

    def line(document: dict[str, Any]) -> str:
        text = encode(document) + "\n"
        digest.update(text.encode())
        return text

    yield line(first)
    count = partitions = 0
    for group in groups:
        count += 1
        partitions += len(group.entries)
        head: dict[str, Any] = {
            "group": group.group,
            "verdict": group.verdict.value,
            "partitions": len(group.entries),
            "writes": sum(entry.write for entry in group.entries),
            "problems": [
                {
                    "kind": problem.kind.value,
                    "what": problem.text,
                    "names": problem.names,
                    "fix": problem.advice,
                    "skips": problem.skips,
                }
                for problem in group.problems
            ],
            "notes": list(group.notes),
            "marker": None if group.marker is None else group.marker.decode("latin-1"),
            "topics": group.topics,
            "skipped": sorted(group.skipped),
            **{
                name: value
                for name in ("kafka_group", "ignored", "znodes", "other_client")
                if (value := getattr(group, name))
            },
            **({} if group.layout is None else {"layout": _read(group.layout)}),
            **({} if group.origin is None else {"from": _read(group.origin)}),
            "stays_behind": [one.document for one in group.stays],
        }
        yield line(head)
        for entry in group.entries:
            planned: dict[str, Any] = {
                "topic": entry.tp.topic,
                "partition": entry.tp.partition,
                "zookeeper": entry.zk,
                "zk_version": entry.zk_version,
                "kafka": entry.kafka.offset if entry.kafka else None,
                "to": entry.to,
                "write": entry.write,
                "reason": entry.reason,
            }
            if entry.decided:
                planned["decided"] = sorted(kind.value for kind in entry.decided)
            if entry.misplaced is not None:
                planned["misplaced"] = entry.misplaced
            if entry.kafka and entry.kafka.leader_epoch != -1:
                planned["leader_epoch"] = entry.kafka.leader_epoch
            if entry.kafka and entry.kafka.metadata:
                planned["metadata"] = entry.kafka.metadata
            if entry.there is not None:
                planned["there"] = entry.there._asdict()
            yield line(planned)
    yield line({"groups": count, "partitions": partitions, "sha256": digest.hexdigest()})


def parse(name: str, data: bytes) -> PlanFile:
    """Return the plan in a file's content. ``name`` is for messages. Raises PlanFileError."""
    reader = _Reader(name, io.BytesIO(data))
    return reader.plan(tuple(reader.groups()))


def render_one(direction: Direction, group: GroupPlan) -> str:
    """Return a group's plan as text for a journal. ``group.made_ms`` must be set."""
    assert group.made_ms is not None
    return "".join(render(direction, group.made_ms, [group]))


def parse_one(name: str, text: str) -> GroupPlan:
    """Return the group's plan in a text from ``render_one``. Raises PlanFileError."""
    plans = parse(name, text.encode())
    (group,) = plans.groups
    return replace(group, made_ms=plans.made_ms)


def load(path: str, elsewhere: bool = False) -> PlanFile:
    """Return the plan in a file. The whole file is checked.

    ``elsewhere``: accept a plan for another cluster. Raises PlanFileError. Reading the groups later
    also raises it, if the file has changed.
    """
    with _open(path) as file:
        stamp = _stamp(file)
        reader = _Reader(path, file)
        count = sum(1 for _ in reader.groups())
    if reader.to is not None and not elsewhere:
        raise PlanFileError(
            f"{path} is a plan for another cluster, and only zkmigrate apply accepts such plans: "
            "they change nothing in this cluster; to undo such a plan, delete the groups in the "
            "other cluster with Kafka's tools"
        )
    return reader.plan(_StoredGroups(path, stamp, count))


def _open(path: str) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise PlanFileError(f"{path}: {error.strerror}") from None


def _stamp(file: BinaryIO) -> tuple[int, ...]:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(frozen=True, slots=True)
class _StoredGroups:
    """Groups that are read from the file each time, so that they use no memory."""

    path: str
    stamp: tuple[int, ...]
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[GroupPlan]:
        with _open(self.path) as file:
            for group in _Reader(self.path, file).groups():
                if _stamp(file) != self.stamp:
                    raise PlanFileError(
                        f"{self.path} changed while it was being read: run the command again"
                    )
                yield group


class _Reader:
    """Parses a file line by line. ``plan`` is valid when all groups are read."""

    def __init__(self, name: str, file: BinaryIO) -> None:
        self._name = name
        self._file = file
        self._number = 0
        self._hash = hashlib.sha256()
        head = self.line()
        version = head.get("zkmigrate")
        if type(version) is not int:
            self.refuse("is not a plan of zkmigrate")
        if version != FORMAT:
            self.refuse(
                f"is a plan in format {version}, which this zkmigrate does not know: use the "
                "version that made it, or make a new plan"
            )
        self.known(head, _HEAD)
        try:
            self.direction = Direction(head.get("direction"))
        except ValueError:
            self.refuse("direction is neither zk-to-kafka nor kafka-to-zk")
        self.made_ms = self.number(head, "made_ms")
        self.cluster = None if head.get("cluster") is None else self.text(head, "cluster")
        self.to, self.origin = (
            self._to(head[key], key) if key in head else None for key in ("to", "from")
        )
        self.at_apply: Options | None = None
        if "at_apply" in head:
            self.at_apply = decisions_file.from_json(f"{name}:1", head["at_apply"])

    def plan(self, groups: Groups) -> PlanFile:
        """Return the plan, once all groups are read."""
        digest = self._hash.hexdigest()
        return PlanFile(
            self.direction,
            self.made_ms,
            groups,
            digest,
            self.at_apply,
            self.cluster,
            self.to,
            self.origin,
        )

    def groups(self) -> Iterator[GroupPlan]:
        names: set[str] = set()
        partitions = 0
        while True:
            before = self._hash.copy()
            line = self.line()
            if "group" not in line:
                break
            self.known(line, _GROUP)
            plan = self.group(line)
            if plan.group in names:
                self.refuse(f"group {plan.group!a} occurs twice")
            names.add(plan.group)
            partitions += len(plan.entries)
            yield plan
        self.known(line, _TOTALS)
        if line.get("groups") != len(names) or line.get("partitions") != partitions:
            self.refuse("the totals at the end do not agree: the file was cut or edited")
        if line.get("sha256") != before.hexdigest():
            self.refuse("the checksum does not agree: the file was edited; make a new plan instead")
        if self._file.readline(1):
            self._number += 1
            self.refuse("something follows the totals")

    def refuse(self, reason: str) -> NoReturn:
        raise PlanFileError(f"{self._name}:{self._number}: {reason}")

    def line(self) -> dict[str, Any]:
        self._number += 1
        raw = self._file.readline(MAX_LINE_BYTES)
        self._hash.update(raw)
        if not raw.endswith(b"\n"):
            if len(raw) == MAX_LINE_BYTES:
                self.refuse(f"is longer than {MAX_LINE_BYTES} bytes")
            self.refuse("the file ends too early: make the plan again")
        try:
            record = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
        except (ValueError, RecursionError):
            self.refuse("is not JSON in UTF-8")
        if not isinstance(record, dict):
            self.refuse("is not a JSON object")
        return record

    def known(self, line: dict[str, Any], keys: frozenset[str]) -> None:
        odd = sorted(line.keys() - keys)
        if odd:
            self.refuse(
                f"{odd[0]!a} is not a key of this zkmigrate's plans: use the version that made the "
                "plan, or make a new one"
            )

    def part(self, value: object, keys: frozenset[str], what: str) -> dict[str, Any]:
        """Return a part of a line, which is an object with no other keys."""
        if not isinstance(value, dict):
            self.refuse(f"{what} is not an object")
        self.known(value, keys)
        return value

    def number(self, line: dict[str, Any], key: str, low: int = 0) -> int:
        value = line.get(key)
        if type(value) is not int or not low <= value <= _INT64:
            self.refuse(f"{key} is not a whole number from {low} to {_INT64}")
        return value

    def maybe(self, line: dict[str, Any], key: str) -> int | None:
        if key not in line:
            self.refuse(f"{key} is missing")
        return None if line[key] is None else self.number(line, key)

    def text(self, line: dict[str, Any], key: str, default: str | None = None) -> str:
        value = line.get(key, default)
        if not isinstance(value, str):
            self.refuse(f"{key} is not a string")
        return value

    def texts(
        self, line: dict[str, Any], key: str, default: list[str] | None = None
    ) -> tuple[str, ...]:
        value = line.get(key, default)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            self.refuse(f"{key} is not a list of strings")
        return tuple(value)

    def group(self, line: dict[str, Any]) -> GroupPlan:
        group = self.text(line, "group")
        problems, notes = line.get("problems"), line.get("notes")
        if not isinstance(problems, list) or not isinstance(notes, list):
            self.refuse("problems and notes are not lists")
        parsed = tuple(self._problem(problem) for problem in problems)
        raw = line.get("marker")
        if raw is not None and max(self.text(line, "marker"), default="") > "\xff":
            self.refuse("marker has characters that are not bytes")
        marker = None if raw is None else raw.encode("latin-1")
        topics = line.get("topics")
        if not isinstance(topics, dict):
            self.refuse("topics is not an object")
        created = {topic: self.number(topics, topic) for topic in topics}
        without = frozenset(self.texts(line, "skipped"))
        stays = line.get("stays_behind")
        if not isinstance(stays, list):
            self.refuse("stays_behind is not a list")
        left = tuple(self._stays(one) for one in stays)
        entries: list[Entry] = []
        seen: set[TopicPartition] = set()
        for _ in range(self.number(line, "partitions")):
            entry = self._entry(self.line())
            if entry.tp in seen:
                self.refuse(f"{entry.tp} occurs twice in group {group!a}")
            if covers(without, entry.tp):
                self.refuse(f"{entry.tp} is a partition that group {group!a} skips")
            if entry.write and entry.tp.topic not in created:
                self.refuse(f"{entry.tp} is not of a topic of group {group!a}")
            seen.add(entry.tp)
            entries.append(entry)
        said = tuple(map(str, notes or ()))
        moved = line.get("verdict") == Verdict.MOVED.value
        if moved and (marker is None or any(entry.write for entry in entries)):
            self.refuse(f"group {group!a} is not moved: it has no marker, or offsets to write")
        plan = GroupPlan(
            group,
            parsed,
            said,
            tuple(entries),
            marker,
            created,
            without,
            left,
            moved=moved,
            kafka_group=self.text(line, "kafka_group", ""),
            ignored=self.text(line, "ignored", ""),
            znodes=self.texts(line, "znodes", []),
            other_client=self.text(line, "other_client", ""),
            layout=self._layout(line["layout"]) if "layout" in line else None,
            origin=self._origin(line["from"]) if "from" in line else None,
        )
        if self.origin is not None and plan.origin is None and plan.verdict is Verdict.READY:
            self.refuse(f"group {group!a} has no offsets in the other cluster")
        if self.to is not None and plan.verdict is Verdict.READY:
            for entry in entries:
                if entry.to is not None and entry.there is None:
                    self.refuse(f"{entry.tp} has no offset in the other cluster")
        if plan.ignored and (entries or parsed):
            self.refuse(f"group {group!a} is ignored, but has partitions or problems")
        if not parsed and not plan.ignored and not is_legal_group(group):
            self.refuse(f"{group[:60]!a} cannot be the name of a group in ZooKeeper")
        if line.get("verdict") != plan.verdict.value:
            self.refuse(f"verdict of group {group!a} does not follow from its problems")
        return plan

    def _layout(self, value: object) -> ReadAs:
        layout = self.part(value, _LAYOUT, "layout")
        try:
            place = Place.parse(self.text(layout, "place"))
        except ValueError as error:
            self.refuse(f"layout: {error}")
        numbers = self._numbers(layout)
        if not numbers:
            self.refuse("layout has no numbers")
        return ReadAs(str(place), numbers)

    def _origin(self, value: object) -> Origin:
        origin = self.part(value, _ORIGIN, "from")
        return Origin(self.text(origin, "group"), self._numbers(origin))

    def _numbers(self, value: dict[str, Any]) -> dict[TopicPartition, int]:
        numbers: dict[TopicPartition, int] = {}
        topics = value.get("numbers")
        for topic, parts in topics.items() if isinstance(topics, dict) else ():
            for number in parts if isinstance(parts, dict) and is_legal_topic(topic) else ():
                if not (number.isascii() and number.isdecimal() and len(number) < 11):
                    self.refuse(f"{number!a} is not a partition")
                numbers[TopicPartition(topic, int(number))] = self.number(parts, number)
        return numbers

    def _to(self, value: object, key: str) -> To:
        to = self.part(value, _TO, key)
        cluster = None if to.get("cluster") is None else self.text(to, "cluster")
        return To(self.text(to, "servers"), cluster)

    def _there(self, value: object) -> There:
        there = self.part(value, _THERE, "there")
        return There(
            self._topic(there),
            self.text(there, "topic_id"),
            self.number(there, "offset"),
            self.number(there, "highest"),
            self.text(there, "proof"),
            self.number(there, "compared"),
            self.text(there, "why"),
        )

    def _topic(self, line: dict[str, Any]) -> str:
        topic = self.text(line, "topic")
        if not is_legal_topic(topic):
            self.refuse(f"{topic[:60]!a} is not a topic's name")
        return topic

    def _problem(self, value: object) -> Problem:
        problem = self.part(value, _PROBLEM, "a problem")
        try:
            kind = Reason(problem.get("kind"))
        except ValueError:
            self.refuse("a problem has an unknown kind")
        what, fix = self.text(problem, "what"), self.text(problem, "fix")
        names, skips = self.texts(problem, "names"), self.texts(problem, "skips")
        return Problem(kind, what, fix, names, skips)

    def _stays(self, value: object) -> StaysBehind:
        line = self.part(value, _STAYS, "an offset of stays_behind")
        tp = TopicPartition(self.text(line, "topic"), self.number(line, "partition"))
        return StaysBehind(tp, self.maybe(line, "offset"), self.text(line, "why"))

    def _entry(self, line: dict[str, Any]) -> Entry:
        self.known(line, _ENTRY)
        tp = TopicPartition(self._topic(line), self.number(line, "partition"))
        if tp.partition >= 2**31:
            self.refuse(f"{tp} is not a partition")
        zk, version = self.maybe(line, "zookeeper"), self.maybe(line, "zk_version")
        if zk is not None and version is None:
            self.refuse(f"{tp} has an offset in ZooKeeper but no zk_version")
        committed = self.maybe(line, "kafka")
        kafka = None
        if committed is not None:
            epoch = self.number(line, "leader_epoch", -1) if "leader_epoch" in line else -1
            metadata = self.text(line, "metadata", "")
            kafka = KafkaOffset(committed, epoch, metadata)
        write = line.get("write")
        if type(write) is not bool:
            self.refuse("write is neither true nor false")
        to = self.maybe(line, "to")
        if write and to is None:
            self.refuse(f"{tp}: a move cannot write 'no offset'")
        try:
            kinds = frozenset(map(Reason, self.texts(line, "decided", [])))
        except ValueError:
            self.refuse(f"{tp}: decided names an unknown kind of problem")
        misplaced = self.number(line, "misplaced") if "misplaced" in line else None
        there = self._there(line["there"]) if "there" in line else None
        if there is not None and (self.to is None or to is None):
            self.refuse(f"{tp} has an offset in another cluster, but the plan names none")
        reason = self.text(line, "reason")
        return Entry(tp, zk, version, kafka, to, write, reason, kinds, misplaced, there)


def _read(read: ReadAs | Origin) -> dict[str, Any]:
    return {**read._asdict(), "numbers": by_topic(read.numbers)}


def _no_constant(name: str) -> Any:
    raise ValueError(name)
