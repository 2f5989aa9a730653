"""Converts complete events, commands and specifications to JSON and back. Pure.

The annotations of the dataclasses determine the JSON. A dataclass becomes an object with all its
fields except caches, whose names begin with ``_``. An enumeration becomes its name, bytes become
base64, a partition or thread id becomes text, and a set becomes a sorted list. A mapping becomes an
object and keeps its order, on which some code depends. Where an annotation names a protocol or
several dataclasses, the object has the class as ``type``.
"""

from __future__ import annotations

import dataclasses
import types
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import ConfigError


class CodecError(ValueError):
    """An unexpected value in JSON. The message names the field and the fault."""


@dataclass(frozen=True, slots=True)
class _Form:
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def _partition(text: str) -> TopicPartition:
    topic, dash, number = text.rpartition("-")
    if not dash:
        raise ValueError(f"not a partition: {text!r}")
    return TopicPartition(topic, int(number))


_TEXTS: Final[Mapping[type, tuple[Callable[[Any], str], Callable[[str], Any]]]] = {
    str: (str, str),
    TopicPartition: (str, _partition),
    ConsumerThreadId: (str, ConsumerThreadId.parse),
    GroupPaths: (attrgetter("group"), GroupPaths),
    bytes: (lambda raw: b64encode(raw).decode(), lambda text: b64decode(text, validate=True)),
}
"""Types that are texts in JSON, with the functions that convert to and from the text.
``ValueError``: the text is invalid."""


class Codec:
    """Encodes and decodes values. ``classes``: the dataclasses that may occur where an annotation
    names a protocol."""

    def __init__(self, classes: Iterable[type] = ()) -> None:
        self._classes = {kind.__name__: kind for kind in classes}
        self._forms: dict[Any, _Form] = {}

    def encode(self, value: Any) -> Any:
        """Return a dataclass as JSON."""
        return self._form(type(value)).encode(value)

    def decode(self, kind: type, encoded: Any) -> Any:
        """Decode JSON to a value of class ``kind``. Raises CodecError."""
        try:
            return self._form(kind).decode(encoded)
        except CodecError as error:
            raise CodecError(f"{kind.__name__}{error}") from None

    def _form(self, kind: Any) -> _Form:
        form = self._forms.get(kind)
        if form is None:
            form = self._forms[kind] = self._make(kind)
        return form

    def _make(self, kind: Any) -> _Form:
        origin, inner = get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType):
            return self._union(tuple(member for member in inner if member is not types.NoneType))
        if origin is tuple:
            if inner[1:] == (...,):
                return _each(self._form(inner[0]), tuple)
            return _pair(tuple(map(self._form, inner)))
        if origin is frozenset:
            return _each(self._form(inner[0]), frozenset)
        if origin is not None and issubclass(origin, Mapping):
            return _mapping(inner[0], self._form(inner[0]), self._form(inner[1]))
        if kind in _TEXTS:
            return _text(*_TEXTS[kind])
        if kind in (bool, int, float):
            return _number(kind)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return self._dataclass(kind)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return _name_of(kind)
        if getattr(kind, "_is_protocol", False):
            return self._tagged(self._classes)
        raise TypeError(f"there is no JSON form for the type {kind}")

    def _union(self, kinds: tuple[Any, ...]) -> _Form:
        form = self._form(kinds[0])
        if len(kinds) > 1:
            form = self._tagged({member.__name__: member for member in kinds})
        return _Form(
            lambda value: None if value is None else form.encode(value),
            lambda encoded: None if encoded is None else form.decode(encoded),
        )

    def _tagged(self, classes: Mapping[str, type]) -> _Form:
        def encode(value: Any) -> Any:
            return {"type": type(value).__name__, **self.encode(value)}

        def decode(encoded: Any) -> Any:
            kind = classes.get(str(encoded.get("type"))) if isinstance(encoded, dict) else None
            if kind is None:
                raise CodecError(f": its type is not one of {', '.join(classes)}")
            fields = {key: value for key, value in encoded.items() if key != "type"}
            return self._form(kind).decode(fields)

        return _Form(encode, decode)

    def _dataclass(self, kind: type) -> _Form:
        hints = get_type_hints(kind)
        fields = [field for field in dataclasses.fields(kind) if not field.name.startswith("_")]
        names = [field.name for field in fields]
        # A journal of an earlier release lacks the fields that were added since.
        required = {
            field.name
            for field in fields
            if field.default is field.default_factory is dataclasses.MISSING
        }
        forms = {name: self._form(hints[name]) for name in names}
        encoders = [(name, form.encode) for name, form in forms.items()]

        def decode(encoded: Any) -> Any:
            if not isinstance(encoded, dict) or not required <= encoded.keys() <= forms.keys():
                raise CodecError(f" must be an object with the fields {', '.join(forms) or '-'}")
            values = {}
            for name, value in encoded.items():
                try:
                    values[name] = forms[name].decode(value)
                except CodecError as error:
                    raise CodecError(f".{name}{error}") from None
            return kind(**values)

        return _Form(
            lambda value: {name: encode(getattr(value, name)) for name, encode in encoders}, decode
        )


def _number(kind: type) -> _Form:
    wanted = (int, float) if kind is float else kind
    what = {int: "an integer", float: "a number", bool: "true or false"}[kind]

    def decode(encoded: Any) -> Any:
        if not isinstance(encoded, wanted) or (kind is not bool and isinstance(encoded, bool)):
            raise CodecError(f": {encoded!r:.60} is not {what}")
        return encoded

    return _Form(lambda value: value, decode)


def _text(encode: Callable[[Any], str], parse: Callable[[str], Any]) -> _Form:
    def decode(encoded: Any) -> Any:
        try:
            if not isinstance(encoded, str):
                raise ValueError(f"not a string: {encoded!r:.60}")
            return parse(encoded)
        except (ValueError, ConfigError) as error:
            raise CodecError(f": {error}") from None

    return _Form(encode, decode)


def _name_of(kind: type[Enum]) -> _Form:
    def decode(encoded: Any) -> Any:
        if not isinstance(encoded, str) or encoded not in kind.__members__:
            raise CodecError(f": {encoded!r:.60} is not one of {', '.join(kind.__members__)}")
        return kind[encoded]

    return _Form(attrgetter("name"), decode)


def _listed(encoded: Any) -> list[Any]:
    if not isinstance(encoded, list):
        raise CodecError(f": {encoded!r:.60} is not a list")
    return encoded


def _each(form: _Form, made: type) -> _Form:
    def encode(value: Iterable[Any]) -> list[Any]:
        items = list(map(form.encode, value))
        return items if made is tuple else sorted(items)

    return _Form(encode, lambda encoded: made(map(form.decode, _listed(encoded))))


def _pair(forms: tuple[_Form, ...]) -> _Form:
    def decode(encoded: Any) -> Any:
        if len(_listed(encoded)) != len(forms):
            raise CodecError(f": {len(encoded)} values instead of {len(forms)}")
        return tuple(form.decode(part) for form, part in zip(forms, encoded, strict=True))

    return _Form(
        lambda value: [form.encode(part) for form, part in zip(forms, value, strict=True)], decode
    )


def _mapping(key_kind: Any, keys: _Form, values: _Form) -> _Form:
    if key_kind not in _TEXTS:
        raise TypeError(f"cannot encode a mapping with keys of type {key_kind} as JSON")

    def decode(encoded: Any) -> Any:
        if not isinstance(encoded, dict):
            raise CodecError(f": {encoded!r:.60} is not an object")
        return {keys.decode(key): values.decode(part) for key, part in encoded.items()}

    return _Form(
        lambda value: {keys.encode(key): values.encode(part) for key, part in value.items()}, decode
    )
