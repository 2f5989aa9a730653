"""A text that is never shown: the type of every secret in a configuration. Any thread."""

from __future__ import annotations

from typing import Final, NoReturn

HIDDEN: Final = "[hidden]"
"""The text that replaces a secret wherever a configuration is shown, as in Kafka."""


class Password:
    """A secret. ``value`` is the only way to the text; it cannot be pickled or copied by accident.

    Source: org.apache.kafka.common.config.types.Password, whose ``toString`` is ``[hidden]`` too.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    @property
    def value(self) -> str:
        """The secret itself."""
        return self._value

    def __repr__(self) -> str:
        return HIDDEN

    def __format__(self, spec: str) -> str:
        return format(HIDDEN, spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Password) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Password, self._value))

    def __bool__(self) -> bool:
        return bool(self._value)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be serialized: pass the path of the file that contains it")
