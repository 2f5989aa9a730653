"""An operator's decisions that a plan cannot make by itself. Values only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, get_args, get_type_hints

from zkconsumer.core.common.types import TopicPartition


class Skip(NamedTuple):
    """A pattern of offsets that are not changed in either store. Each part may be a glob."""

    group: str
    topic: str
    partition: str = "*"

    @property
    def pattern(self) -> str:
        """The pattern without the group: ``TOPIC``, or ``TOPIC:PARTITION``."""
        return self.topic if self.partition == "*" else f"{self.topic}:{self.partition}"

    def is_of(self, group: str) -> bool:
        """Whether the pattern applies to this group."""
        return _means(self.group, group)


def covers(patterns: frozenset[str], tp: TopicPartition) -> bool:
    """Whether a pattern matches ``tp``. Patterns are ``TOPIC`` or ``TOPIC:PARTITION``, with
    globs."""
    name = f"{tp.topic}:{tp.partition}"
    if tp.topic in patterns or name in patterns:
        return True
    return any(fnmatchcase(name, glob) for glob in _globs(patterns))


@lru_cache(maxsize=1024)
def _globs(patterns: frozenset[str]) -> tuple[str, ...]:
    return tuple(one if ":" in one else f"{one}:*" for one in filter(is_glob, patterns))


def is_glob(text: str) -> bool:
    """Whether a text is a pattern, not a name."""
    return any(letter in text for letter in "*?[")


@dataclass(frozen=True, slots=True)
class Rule:
    """Decisions about some groups, or some of their topics; both names may be globs.

    ``decided``: the value of each decision, by its name in ``Options``. ``skip``: do not change the
    offsets; if ``partition`` is set, only those of that partition. ``ignore``: why whole groups are
    not changed.
    """

    group: str = "*"
    topic: str = "*"
    partition: int | None = None
    decided: Mapping[str, object] = field(default_factory=dict)
    skip: bool = False
    ignore: str = ""


def _means(pattern: str, name: str) -> bool:
    return pattern in ("*", name) or (is_glob(pattern) and fnmatchcase(name, pattern))


@dataclass(frozen=True, slots=True)
class Options:
    """An operator's decisions.

    Offsets that match ``skips`` are not moved. For each decision, the first of ``rules`` that
    matches the group and topic takes precedence over the value here.
    """

    on_conflict: Literal["refuse", "zookeeper", "kafka", "newest", "min", "max"] = "refuse"
    """For partitions whose offsets differ between the two stores."""
    out_of_range: Literal["refuse", "clamp"] = "refuse"
    """For offsets outside the log."""
    misplaced: Literal["refuse", "ignore", "use"] = "refuse"
    """For offsets that a 1.1.0 broker stored below ``offset`` (not ``offsets``)."""
    missing_topics: Literal["refuse", "skip"] = "refuse"
    """For offsets of topics and partitions that do not exist."""
    recreated_topics: Literal["refuse", "skip", "earliest"] = "refuse"
    """For offsets that were stored before their topic was created."""
    unproven_topics: Literal["refuse", "trust", "skip", "earliest"] = "refuse"
    """For offsets if it is not certain that their topic is still the same."""
    without_offset: Literal["leave", "earliest", "latest", "refuse"] = "leave"
    """For partitions without any offset; ``leave``: ``auto.offset.reset`` decides."""
    expired_offsets: Literal["refuse", "moved", "earliest", "latest"] = "refuse"
    """For offsets that were moved and have disappeared since. ``moved``: use the offset in the
    other store; messages that were consumed since are consumed again."""
    other_znodes: Literal["refuse", "ignore"] = "refuse"
    """For groups with znodes that no JVM consumer creates, next to its own."""
    source_means: Literal["default", "next", "last"] = "default"
    """Meaning of the numbers in ZooKeeper: the next record to read, or the last record read.
    ``default``: as stored by the layout's client, otherwise the next record."""
    max_idle_days: int = 30
    """Groups without a commit for more than this many days are refused."""
    skips: tuple[Skip, ...] = ()
    rules: tuple[Rule, ...] = ()

    def of_group(self, group: str) -> Options:
        """Return the decisions about one group. Decisions about some topics stay in ``rules``."""
        mine = tuple(rule for rule in self.rules if _means(rule.group, group))
        skips = tuple(
            Skip(group, rule.topic, "*" if rule.partition is None else str(rule.partition))
            for rule in mine
            if rule.skip
        )
        narrowed = replace(self, rules=mine, skips=(*self.skips, *skips))
        return narrowed._decided(rule for rule in mine if rule.topic == "*") if mine else narrowed

    def ignored(self, group: str) -> str:
        """Return the reason why a group is ignored regardless of its offsets; empty if it is not
        ignored.

        ``group`` may also be the path of a znode. Only rules that begin with ``/`` apply to paths.
        """
        means = (
            rule.ignore
            for rule in self.rules
            if rule.ignore
            and rule.group.startswith("/") == group.startswith("/")
            and _means(rule.group, group)
        )
        return next(means, "")

    def skips_all(self, group: str) -> bool:
        """Whether all offsets of a group are skipped, regardless of their values."""
        return any(
            (skip.topic, skip.partition) == ("*", "*") and skip.is_of(group)
            for skip in self.of_group(group).skips
        )

    def of_topic(self, topic: str) -> Options:
        """Return the decisions about a topic. Call it only on a result of ``of_group``."""
        return self._decided(rule for rule in self.rules if _means(rule.topic, topic))

    def _decided(self, rules: Iterable[Rule]) -> Options:
        values: dict[str, Any] = {}
        for rule in rules:
            values = {**rule.decided, **values}
        return replace(self, **values) if values else self

    @property
    def needs_commit_times(self) -> bool:
        """Whether a decision depends on when offsets were committed to Kafka."""
        every = {self.on_conflict, *(rule.decided.get("on_conflict") for rule in self.rules)}
        return "newest" in every


DECIDED: Final = tuple(one.name for one in fields(Options) if one.name not in ("skips", "rules"))
"""The decisions that a rule can make."""
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    name: get_args(get_type_hints(Options)[name]) for name in DECIDED if name != "max_idle_days"
}
"""The decisions with fixed choices, and these choices."""
