"""Functions that turn a message into output: ``--property``, ``--formatter`` and the deserializers.

Names, order and texts are those of Kafka 3.9's console consumer (DefaultMessageFormatter) where
Python has an equivalent; ``MODULE:FUNCTION`` names a function of the user. Each stream's thread
calls the function that ``message_format`` returns.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final

from zkconsumer.broker.fetching.records import Decode, MessageAndMetadata, TimestampType
from zkconsumer.cli.consume.output import Format, as_json, as_value
from zkconsumer.errors import ConfigError

_FLAGS: Final = {
    "print.timestamp": False,
    "print.partition": False,
    "print.offset": False,
    "print.headers": False,
    "print.key": False,
    "print.value": True,
}
_TEXTS: Final = {
    "key.separator": "\t",
    "line.separator": "\n",
    "headers.separator": ",",
    "null.literal": "null",
}
NAMES: Final = (*_FLAGS, *_TEXTS)
_TIMES: Final = {
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}


def line_format(
    properties: Sequence[str],
    key: Callable[[bytes], bytes] | None = None,
    value: Callable[[bytes], bytes] | None = None,
) -> Callable[[MessageAndMetadata], bytes]:
    """Return a function that formats a message as the bytes of a line, from ``KEY=VALUE`` pairs.

    ``key`` and ``value`` convert the bytes of keys and values to printed bytes. They are not
    called for null.

    Raises ConfigError for a key that is not in ``NAMES``, or a value that is not true or false.
    """
    flags, texts, faults = dict(_FLAGS), dict(_TEXTS), []
    for pair in properties:
        name, equals, text = pair.partition("=")
        name = name.strip()
        if not equals:
            faults.append(f"--property {pair!r}: write KEY=VALUE")
        elif name in flags:
            if text.strip().lower() not in ("true", "false"):
                faults.append(f"--property {name}={text}: must be true or false")
            flags[name] = text.strip().lower() == "true"
        elif name in texts:
            texts[name] = text
        else:
            faults.append(
                f"--property {name}: not one of {', '.join(NAMES)}; a key of the consumer's "
                f"configuration goes into --consumer-property"
            )
    if faults:
        raise ConfigError(faults)
    bits = {name: part.encode(errors="surrogateescape") for name, part in texts.items()}
    between, end, null = bits["key.separator"], bits["line.separator"], bits["null.literal"]
    comma = bits["headers.separator"]

    def header(name: str, value: bytes | None) -> bytes:
        return name.encode(errors="surrogateescape") + b":" + (null if value is None else value)

    def shown(data: bytes | None, change: Callable[[bytes], bytes] | None) -> bytes:
        if data is None:
            return null
        return data if change is None else change(data)

    def line(message: MessageAndMetadata) -> bytes:
        cells = []
        if flags["print.timestamp"]:
            kind = _TIMES.get(message.timestamp_type)
            cells.append(f"{kind}:{message.timestamp}".encode() if kind else b"NO_TIMESTAMP")
        if flags["print.partition"]:
            cells.append(b"Partition:%d" % message.partition)
        if flags["print.offset"]:
            cells.append(b"Offset:%d" % message.offset)
        if flags["print.headers"]:
            cells.append(comma.join(header(*pair) for pair in message.headers) or b"NO_HEADERS")
        if flags["print.key"]:
            cells.append(shown(message.raw_key, key))
        if flags["print.value"]:
            cells.append(shown(message.raw_value, value))
        return between.join(cells) + end

    return line


_KAFKA: Final = "org.apache.kafka.common.serialization."


def _number(form: str) -> Decode:
    unpack = struct.Struct(form).unpack
    return lambda data: unpack(data)[0]


def _escaped(data: bytes) -> str:
    """Escape everything that is not printable ASCII, as Kafka's ``Bytes.toString`` does."""
    return "".join(
        chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x5C else f"\\x{byte:02X}" for byte in data
    )


_DESERIALIZERS: Final[dict[str, Decode]] = {
    "string": lambda data: data.decode(errors="replace"),
    "short": _number(">h"),
    "integer": _number(">i"),
    "long": _number(">q"),
    "float": _number(">f"),
    "double": _number(">d"),
    "bytes": _escaped,
}
_FORMATTERS: Final = {
    "kafka.tools.DefaultMessageFormatter": "default",
    "kafka.tools.NoOpMessageFormatter": "noop",
    "org.apache.kafka.tools.consumer.DefaultMessageFormatter": "default",
    "org.apache.kafka.tools.consumer.NoOpMessageFormatter": "noop",
}


def message_format(
    form: str,
    formatting: Sequence[str] = (),
    formatter: str | None = None,
    key: str | None = None,
    value: str | None = None,
) -> Format:
    """Return a function that formats a message as bytes.

    Args:
        form: ``--format``.
        formatting: ``--property``, each as ``KEY=VALUE``.
        formatter: ``--formatter``: ``default``, ``noop``, Kafka's name for either, or
            ``MODULE:FUNCTION``, which gets a ``MessageAndMetadata`` and returns bytes.
        key: ``--key-deserializer``: a type, Kafka's class for it, or ``MODULE:FUNCTION``, which
            gets bytes. Its result is printed as text.
        value: ``--value-deserializer``, likewise.

    Raises ConfigError for a name that cannot be resolved, and for combined options that would have
    no effect.
    """
    given = {
        "--property": bool(formatting),
        "--formatter": formatter is not None,
        "--key-deserializer": key is not None,
        "--value-deserializer": value is not None,
    }
    used = [option for option, there in given.items() if there]
    if used and form != "value":
        raise ConfigError([f"{used[0]} requires --format value"])
    name = _FORMATTERS.get(formatter or "", formatter or "default")
    if name != "default":
        others = [option for option in used if option != "--formatter"]
        if others:
            raise ConfigError([f"{others[0]} has no effect with --formatter {formatter}"])
        if name == "noop":
            return lambda message: b""
        return _checked("--formatter", _function("--formatter", name, ("default", "noop")))
    if form == "json":
        return as_json
    if not used:
        return as_value
    return line_format(
        formatting,
        _deserializer("--key-deserializer", key),
        _deserializer("--value-deserializer", value),
    )


def _deserializer(option: str, name: str | None) -> Callable[[bytes], bytes] | None:
    if name is None or name == f"{_KAFKA}ByteArrayDeserializer":
        return None
    short = name.removeprefix(_KAFKA).removesuffix("Deserializer").lower()
    decode = _DESERIALIZERS.get(short) or _function(option, name, tuple(_DESERIALIZERS))
    return lambda data: str(decode(data)).encode(errors="surrogateescape")


def _function(option: str, name: str, known: tuple[str, ...]) -> Callable[[Any], Any]:
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        names = ", ".join(known)
        raise ConfigError([f"{option} {name}: must be one of {names}, or MODULE:FUNCTION"])
    try:
        function = getattr(import_module(module), attribute)
    except (ImportError, ValueError, AttributeError) as error:
        raise ConfigError(
            [
                f"{option} {name}: {error}; Python searches for modules in the directories of "
                "PYTHONPATH"
            ]
        ) from None
    if not callable(function):
        raise ConfigError([f"{option} {name} is not a function"])
    made: Callable[[Any], Any] = function
    return made


def _checked(option: str, function: Callable[[Any], Any]) -> Format:
    def form(message: MessageAndMetadata) -> bytes:
        made = function(message)
        if not isinstance(made, bytes):
            raise TypeError(f"{option} must return bytes, not {type(made).__name__}")
        return made

    return form
