"""Topic filters: which topics a registration means, seen by the member that reads it.

A filter (white list or black list) is a regex over whole topic names. Every member evaluates every
other member's filter against its own list of topics, so the result must be the same everywhere.
Patterns are foreign input: matching has a time limit. Pure functions apart from that limit, which
the ``regex`` library keeps; any thread may call them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from regex import Pattern as Program

from zkconsumer.core.java_regex import InvalidRegexError, compile_java
from zkconsumer.core.types import Pattern, Subscription
from zkconsumer.core.znodes import is_legal_topic
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
    """All topics whose whole name matches ``raw``, e.g. ``orders,clicks`` or ``log[.].*``."""

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
    cleaned once more as the JVM does, selects. Names that no topic can have are left out: they
    have no partitions, so the assignment is the same. The reader's own ``exclude_internal`` counts.
    Raises ZnodeFormatError when the regex is invalid or needs more than about 50 ms.
    """
    if subscription.pattern is Pattern.STATIC:
        return {name: n for name, n in subscription.topics.items() if is_legal_topic(name)}
    stored, streams = next(iter(subscription.topics.items()))
    cleaned = clean_regex(stored)
    names = sorted(filter(is_legal_topic, all_topics))
    try:
        program = compile_java(cleaned)
        chosen = _select(subscription.pattern, program, names, exclude_internal)
    except InvalidRegexError as error:
        reason = f"topic filter {cleaned[:60]!a} is not a valid regex: {error}"
        raise ZnodeFormatError(path, reason) from None
    except _TooSlowError:
        reason = f"topic filter {cleaned[:60]!a} takes too long to match"
        raise ZnodeFormatError(path, reason) from None
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
            # DEVIATION-21: the JVM lets a regex run for ever.
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
