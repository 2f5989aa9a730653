"""The output of ``zkconsumer consume``: two formats, and the class that writes them.

Each stream's thread calls ``Printer.write``. One lock keeps lines complete.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable
from typing import BinaryIO

from zkconsumer.broker.fetching.records import MessageAndMetadata
from zkconsumer.errors import ZkConsumerError
from zkconsumer.runtime.delivery.streams import KafkaStream

Format = Callable[[MessageAndMetadata], bytes]


class MessageFormatError(ZkConsumerError):
    """A message cannot be turned into output."""


def as_value(message: MessageAndMetadata) -> bytes:
    """Return the value as a line; ``null`` for a tombstone, as the JVM's tool prints it."""
    value = message.raw_value
    return b"null\n" if value is None else value + b"\n"


def as_json(message: MessageAndMetadata) -> bytes:
    """Return a message as a line with one JSON object. Text is a string; bytes that are not UTF-8
    are ``{"base64": ...}``."""
    document = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp if message.timestamp >= 0 else None,
        "key": _shown(message.raw_key),
        "value": _shown(message.raw_value),
    }
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def _shown(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


class Printer:
    """Writes messages of all streams to one output, up to ``limit``.

    A message that cannot be formatted is passed to ``skip`` as an error text, and counted, as in
    Kafka's console consumer. Without ``skip``, ``write`` raises MessageFormatError.
    """

    def __init__(
        self,
        out: BinaryIO,
        form: Format,
        limit: int | None,
        skip: Callable[[str], object] | None = None,
    ) -> None:
        self.count = 0
        self.last = time.monotonic()
        """When a message was last written, or when writing began."""
        self._out = out
        self._form = form
        self._limit = limit
        self._skip = skip
        self._lock = threading.Lock()
        self._closed = False

    def write(self, stream: KafkaStream | None, message: MessageAndMetadata) -> bool:
        """Write a message and count it as consumed. Return whether more messages are wanted.

        After ``close`` nothing is written, and the message does not count as consumed. Without a
        ``stream`` there is no offset to count.
        """
        line = self._line(message)
        with self._lock:
            if self._closed:
                return False
            try:
                self._out.write(line)
                self._out.flush()
            except BaseException:
                self._closed = True
                raise
            if stream is not None:
                stream.mark_consumed()
            self.count += 1
            self.last = time.monotonic()
            self._closed = self.count == self._limit
            return not self._closed

    def _line(self, message: MessageAndMetadata) -> bytes:
        try:
            return self._form(message)
        except Exception as error:  # a function of the user's may raise anything
            where = f"{message.topic}-{message.partition}, offset {message.offset}"
            what = f"{where}: the message cannot be formatted: {str(error) or type(error).__name__}"
            if self._skip is None:
                raise MessageFormatError(f"{what}; skip it with --skip-message-on-error") from error
            self._skip(f"skipped {what}")
            return b""

    def close(self) -> None:
        """Ignore later messages."""
        with self._lock:
            self._closed = True
