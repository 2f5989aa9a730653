"""``--property`` of ``zkconsumer consume``: adds fields next to the value, as in Kafka. Pure.

Names, order and texts are those of Kafka 3.9's DefaultMessageFormatter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from zkconsumer.broker.fetching.records import MessageAndMetadata, TimestampType
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
    bits = {name: part.encode() for name, part in texts.items()}
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
