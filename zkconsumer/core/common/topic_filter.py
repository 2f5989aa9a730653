"""Topic filters: which topics a registration means, seen by the member that reads it.

A filter (white list or black list) is a regex over whole topic names. Every member evaluates every
other member's filter against its own list of topics, so the result must be the same everywhere.
Patterns are untrusted input: the steps of matching are limited, see `name_sets`. Pure functions;
any thread may call them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from zkconsumer.core.common.java_regex import InvalidRegexError, compile_java
from zkconsumer.core.common.name_sets import NameList, Names, Program, TooManyStepsError
from zkconsumer.core.common.types import Pattern, Subscription
from zkconsumer.core.zookeeper.znodes import is_legal_topic
from zkconsumer.errors import ConfigError, ZnodeFormatError

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""Topics that filters leave out while ``exclude.internal.topics`` is true."""

_BLANKS: Final = "".join(map(chr, range(33)))  # what Java's String.trim removes


class _UnusableError(Exception):
    """A filter cannot be used; says why."""


_Key = tuple[Pattern, tuple[tuple[str, int], ...]]
"""Subscriptions with equal keys mean the same topics."""


def clean_regex(raw: str) -> str:
    """Return a filter's text as the JVM reads it (Scala TopicFilter).

    Trimmed; each comma becomes ``|``; blanks go; quotes around it go. So ``a{1,2}`` becomes
    ``a{1|2}``, which is invalid: a filter cannot use bounded repetition.
    """
    text = raw.strip(_BLANKS).replace(",", "|").replace(" ", "")
    return text.lstrip("\"'").rstrip("\"'")


@dataclass(frozen=True)
class TopicFilter:
    """A white list or black list: ``regex`` is normalised, and ``pattern`` is the kind of list.

    Use `Whitelist` and `Blacklist`. Raises ConfigError if Java would not compile the regex.
    """

    pattern: Pattern
    regex: str
    _program: Program | NameList = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "_program", compile_java(self.regex))
        except InvalidRegexError as error:
            raise ConfigError(
                [
                    f"topic filter {self.regex!r} is not a valid Java regex ({error}): correct it; "
                    "note that a comma separates alternatives, also inside braces"
                ]
            ) from None

    def allows(self, topic: str, exclude_internal: bool) -> bool:
        """Return whether the filter selects this topic.

        Internal topics are not selected while ``exclude_internal`` is true. Raises ConfigError if
        the regex takes too many steps.
        """
        try:
            return bool(_select(self.pattern, self._program, Names([topic]), exclude_internal))
        except TooManyStepsError:
            raise ConfigError(
                [f"topic filter {self.regex!r} takes too long to match {topic!r}: simplify it"]
            ) from None


class Whitelist(TopicFilter):
    """Selects all topics whose whole name matches ``raw``, e.g. ``orders,clicks`` or
    ``log[.].*``."""

    def __init__(self, raw: str) -> None:
        super().__init__(Pattern.WHITE_LIST, clean_regex(raw))


class Blacklist(TopicFilter):
    """Selects all topics whose whole name does not match ``raw``."""

    def __init__(self, raw: str) -> None:
        super().__init__(Pattern.BLACK_LIST, clean_regex(raw))


def expand(
    path: str, subscription: Subscription, all_topics: Collection[str], exclude_internal: bool
) -> dict[str, int]:
    """Return topic -> number of streams for the registration at ``path``.

    Static: its topics, whether they exist or not. Filter: the topics that its regex selects, in the
    order of ``all_topics``. The regex is cleaned once more, as the JVM does. Names that are illegal
    for topics are left out, because they have no partitions. The reader's own ``exclude_internal``
    applies.

    Raises ZnodeFormatError when the regex is invalid, or takes more steps than are allowed for all
    names together. That depends on the regex and the names, so it is the same for all members.
    """
    # DEVIATION-24: the JVM's hash maps hold them, and order partitions with equal hashes.
    if subscription.pattern is Pattern.STATIC:
        return _static(subscription)
    try:
        return _selected(subscription, _legal(all_topics), exclude_internal)
    except _UnusableError as fault:
        raise ZnodeFormatError(path, str(fault)) from None


class _Expansion(NamedTuple):
    """What a subscription selects; ``None`` if it cannot be used. ``fault``: why not, or why these
    are the topics of an earlier list."""

    selected: Mapping[str, int] | None
    fault: str


class Expansions:
    """The subscriptions of one group's registrations, cached between two reads of the group.

    A filter is evaluated once for each list of topics, however many members have it. Members with
    the same subscription, topics in the same order, share one mapping. Only one thread at a time
    may use it.

    A filter that cannot be evaluated any more, because topics were added, keeps the topics that it
    selected before.
    """

    def __init__(self) -> None:
        self._all_topics: tuple[str, ...] = ()
        self._exclude_internal = True
        self._names = Names([])
        self._found: dict[_Key, _Expansion] = {}

    def of(
        self,
        subscriptions: Mapping[str, Subscription],
        all_topics: Collection[str],
        exclude_internal: bool,
    ) -> tuple[dict[str, Mapping[str, int]], dict[str, str]]:
        """Like ``expand`` for each registration, by any name.

        Returns the expanded ones by name, and by name why registrations cannot be used. A name in
        both keeps the topics that it had. A filter that took too many steps is not evaluated again
        with the same topics.
        """
        before, self._found = self._found, {}
        topics = tuple(all_topics)
        same = (topics, exclude_internal) == (self._all_topics, self._exclude_internal)
        if not same:
            self._names = _legal(topics)
            self._all_topics, self._exclude_internal = topics, exclude_internal
        expanded: dict[str, Mapping[str, int]] = {}
        unusable: dict[str, str] = {}
        for name, subscription in subscriptions.items():
            key = (subscription.pattern, tuple(subscription.topics.items()))
            if key not in self._found:
                last = before.get(key)
                self._found[key] = last if same and last else self._expand(subscription, last)
            selected, fault = self._found[key]
            if selected is not None:
                expanded[name] = selected
            if fault:
                unusable[name] = fault
        return expanded, unusable

    def _expand(self, subscription: Subscription, last: _Expansion | None) -> _Expansion:
        """``last``: the result for an earlier list of topics."""
        if subscription.pattern is Pattern.STATIC:
            return _Expansion(_static(subscription), "")
        try:
            return _Expansion(_selected(subscription, self._names, self._exclude_internal), "")
        except _UnusableError as fault:
            if last is None or last.selected is None:
                return _Expansion(None, str(fault))
            exist = set(self._names.names)
            kept = {topic: n for topic, n in last.selected.items() if topic in exist}
            return _Expansion(kept, f"{fault}; until it can be used, it keeps the topics it had")


def _legal(topics: Collection[str]) -> Names:
    return Names(filter(is_legal_topic, topics))


def _static(subscription: Subscription) -> dict[str, int]:
    return {name: n for name, n in subscription.topics.items() if is_legal_topic(name)}


def _selected(subscription: Subscription, names: Names, exclude_internal: bool) -> dict[str, int]:
    """Topics that a filter means, with their number of streams. Raises _UnusableError."""
    stored, streams = next(iter(subscription.topics.items()))
    cleaned = clean_regex(stored)
    try:
        program = compile_java(cleaned)
        chosen = _select(subscription.pattern, program, names, exclude_internal)
    except InvalidRegexError as error:
        raise _UnusableError(
            f"topic filter {cleaned[:60]!a} is not a valid regex: {error}"
        ) from None
    except TooManyStepsError:
        raise _UnusableError(f"topic filter {cleaned[:60]!a} takes too long to match") from None
    return dict.fromkeys(chosen, streams)


def _select(
    pattern: Pattern, program: Program | NameList, names: Names, exclude_internal: bool
) -> list[str]:
    """Return the names a filter means. Raises TooManyStepsError."""
    wanted = pattern is Pattern.WHITE_LIST
    # DEVIATION-21: the JVM lets a regex run indefinitely.
    return [
        name
        for name, matched in zip(names.names, program.matches(names), strict=True)
        if matched is wanted and not (exclude_internal and name in INTERNAL_TOPICS)
    ]
