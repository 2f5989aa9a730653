"""Topic filters: a whitelist or a blacklist, which is a regex for whole topic names.

Every member evaluates every other member's filter with its own list of topics, so the result must
be the same everywhere. Patterns are untrusted input, so the number of matching steps is limited;
see `name_sets`. Pure functions; any thread may call them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from zkconsumer.core.common.java_regex import InvalidRegexError, compile_java
from zkconsumer.core.common.name_sets import NameList, Names, Program, TooManyStepsError
from zkconsumer.core.common.types import (
    INTERNAL_TOPICS,
    Pattern,
    Subscription,
    UnusableFilterError,
)
from zkconsumer.errors import ConfigError

_BLANKS: Final = "".join(map(chr, range(33)))  # what Java's String.trim removes


def clean_regex(raw: str) -> str:
    """Return a filter's text as the JVM reads it (Scala TopicFilter).

    The text is trimmed, each comma is replaced by ``|``, and blanks and surrounding quotes are
    removed. So ``a{1,2}`` becomes ``a{1|2}``, which is invalid: a filter cannot use bounded
    repetition.
    """
    text = raw.strip(_BLANKS).replace(",", "|").replace(" ", "")
    return text.lstrip("\"'").rstrip("\"'")


@dataclass(frozen=True)
class TopicFilter:
    """A whitelist or blacklist. ``regex`` is normalised, and ``pattern`` is the kind of list.

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


def selected(subscription: Subscription, names: Names, exclude_internal: bool) -> dict[str, int]:
    """Return the topics that a filter selects, with their number of streams. Raises
    UnusableFilterError."""
    stored, streams = next(iter(subscription.topics.items()))
    cleaned = clean_regex(stored)
    try:
        program = compile_java(cleaned)
        chosen = _select(subscription.pattern, program, names, exclude_internal)
    except InvalidRegexError as error:
        raise UnusableFilterError(
            f"topic filter {cleaned[:60]!a} is not a valid regex: {error}"
        ) from None
    except TooManyStepsError:
        raise UnusableFilterError(
            f"topic filter {cleaned[:60]!a} takes too long to match: simplify it"
        ) from None
    return dict.fromkeys(chosen, streams)


def _select(
    pattern: Pattern, program: Program | NameList, names: Names, exclude_internal: bool
) -> list[str]:
    """Return the names that a filter selects. Raises TooManyStepsError."""
    wanted = pattern is Pattern.WHITE_LIST
    # DEVIATION-21: the JVM lets a regex run indefinitely.
    return [
        name
        for name, matched in zip(names.names, program.matches(names), strict=True)
        if matched is wanted and not (exclude_internal and name in INTERNAL_TOPICS)
    ]
