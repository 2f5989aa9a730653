"""Topic filters: which topics a registration means, seen by the member that reads it.

A filter (white list or black list) is a regex over whole topic names. Every member evaluates every
other member's filter against its own list of topics, so the result must be the same everywhere.
Patterns are foreign input: matching has a time limit. Pure functions apart from that limit, which
the ``regex`` library keeps; any thread may call them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from regex import Pattern as Program

from zkconsumer.core.common.java_regex import InvalidRegexError, compile_java
from zkconsumer.core.common.types import Pattern, Subscription
from zkconsumer.core.zookeeper.znodes import is_legal_topic
from zkconsumer.errors import ConfigError, ZnodeFormatError

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""Topics that filters leave out while ``exclude.internal.topics`` is true."""

_QUICK_SECONDS: Final = 0.0005
"""Processor time for one name on the first try. Ordinary patterns take some microseconds."""
_SLOW_SECONDS: Final = 0.01
"""Processor time for one name on the second try."""
_SLOW_NAMES: Final = 4
"""How many names may need a second try: 4 x 10 ms, then the pattern is refused."""

_BLANKS: Final = "".join(map(chr, range(33)))  # what Java's String.trim removes


class _TooSlowError(Exception):
    """A pattern used up its time."""


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
    """A white list or black list: ``regex`` is cleaned, ``pattern`` says which of the two it is.

    Use `Whitelist` and `Blacklist`. Raises ConfigError when Java would not compile the regex.
    """

    pattern: Pattern
    regex: str
    _program: Program[str] = field(init=False, repr=False, compare=False)

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
        """Tell whether the filter means this topic.

        Internal topics are never meant while ``exclude_internal`` is true. Raises ConfigError when
        the regex takes too long.
        """
        try:
            return bool(_select(self.pattern, self._program, [topic], exclude_internal))
        except _TooSlowError:
            raise ConfigError(
                [f"topic filter {self.regex!r} takes too long to match {topic!r}: simplify it"]
            ) from None


class Whitelist(TopicFilter):
    """All topics whose whole name matches ``raw``, e.g. ``commands,clicks`` or ``log[.].*``."""

    def __init__(self, raw: str) -> None:
        super().__init__(Pattern.WHITE_LIST, clean_regex(raw))


class Blacklist(TopicFilter):
    """All topics whose whole name does not match ``raw``."""

    def __init__(self, raw: str) -> None:
        super().__init__(Pattern.BLACK_LIST, clean_regex(raw))


def expand(
    path: str, subscription: Subscription, all_topics: Collection[str], exclude_internal: bool
) -> dict[str, int]:
    """Return topic -> number of streams for the registration at ``path``.

    Static: its topics, whether they exist or not. Filter: those of ``all_topics`` that its regex,
    cleaned once more as the JVM does, selects, in the order of ``all_topics``. Names that no topic
    can have are left out, because they have no partitions. The reader's own ``exclude_internal``
    counts.

    Raises ZnodeFormatError when the regex is invalid, or takes too long: more than 0.5 ms of
    processor time for each of five names, or more than 10 ms for one. So n names take 0.5 ms times
    n, and some 50 ms, at most. Whether a borderline pattern takes too long depends on the machine.
    """
    # DEVIATION-24: the JVM's hash maps hold them, and order partitions with equal hashes.
    if subscription.pattern is Pattern.STATIC:
        return _static(subscription)
    try:
        return _selected(subscription, _legal(all_topics), exclude_internal)
    except _UnusableError as fault:
        raise ZnodeFormatError(path, str(fault)) from None


class Expansions:
    """What the registrations of one group mean, remembered from one look at the group to the next.

    A filter is evaluated once for each list of topics, however many members have it. Members with
    the same subscription, topics in the same order, share one mapping. Not for use by several
    threads at once.
    """

    def __init__(self) -> None:
        self._all_topics: tuple[str, ...] = ()
        self._exclude_internal = True
        self._names: list[str] = []
        self._found: dict[_Key, dict[str, int] | str] = {}

    def of(
        self,
        subscriptions: Mapping[str, Subscription],
        all_topics: Collection[str],
        exclude_internal: bool,
    ) -> tuple[dict[str, Mapping[str, int]], dict[str, str]]:
        """Do as ``expand`` for each registration, by any name.

        Returns the expanded ones by name, and by name why the others cannot be used. A filter that
        took too long is not tried again with the same topics.
        """
        before, self._found = self._found, {}
        topics = tuple(all_topics)
        if (topics, exclude_internal) != (self._all_topics, self._exclude_internal):
            before, self._names = {}, _legal(topics)
            self._all_topics, self._exclude_internal = topics, exclude_internal
        expanded: dict[str, Mapping[str, int]] = {}
        unusable: dict[str, str] = {}
        for name, subscription in subscriptions.items():
            key = (subscription.pattern, tuple(subscription.topics.items()))
            if key not in self._found:
                self._found[key] = before[key] if key in before else self._expand(subscription)
            found = self._found[key]
            if isinstance(found, str):
                unusable[name] = found
            else:
                expanded[name] = found
        return expanded, unusable

    def _expand(self, subscription: Subscription) -> dict[str, int] | str:
        if subscription.pattern is Pattern.STATIC:
            return _static(subscription)
        try:
            return _selected(subscription, self._names, self._exclude_internal)
        except _UnusableError as fault:
            return str(fault)


def _legal(topics: Collection[str]) -> list[str]:
    return list(filter(is_legal_topic, topics))


def _static(subscription: Subscription) -> dict[str, int]:
    return {name: n for name, n in subscription.topics.items() if is_legal_topic(name)}


def _selected(
    subscription: Subscription, names: Collection[str], exclude_internal: bool
) -> dict[str, int]:
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
    except _TooSlowError:
        raise _UnusableError(f"topic filter {cleaned[:60]!a} takes too long to match") from None
    return dict.fromkeys(chosen, streams)


def _select(
    pattern: Pattern, program: Program[str], names: Collection[str], exclude_internal: bool
) -> list[str]:
    """Return the names a filter means. Raises _TooSlowError."""
    wanted = pattern is Pattern.WHITE_LIST
    retries = _SLOW_NAMES
    chosen: list[str] = []
    for name in names:
        if exclude_internal and name in INTERNAL_TOPICS:
            continue
        try:
            # DEVIATION-21: the JVM lets a regex run indefinitely.
            matched = program.fullmatch(name, timeout=_QUICK_SECONDS)
        except TimeoutError:
            if not retries:
                raise _TooSlowError from None
            retries -= 1
            try:
                matched = program.fullmatch(name, timeout=_SLOW_SECONDS)
            except TimeoutError:
                raise _TooSlowError from None
        if (matched is not None) is wanted:
            chosen.append(name)
    return chosen
