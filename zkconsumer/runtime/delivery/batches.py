"""Iterators over several messages of a stream at once: lists, and Arrow columns.

They run on the thread that consumes the stream. All state is in the stream's ``ConsumerIterator``.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from importlib import import_module
from typing import Any

from zkconsumer.broker.records import MessageAndMetadata
from zkconsumer.errors import UsageError
from zkconsumer.runtime.delivery.consumer_iterator import ConsumerIterator, RecordBatch
from zkconsumer.runtime.delivery.handout import HandOut
from zkconsumer.runtime.undisturbed import Undisturbed


class BatchIterator(HandOut[list[MessageAndMetadata]]):
    """Iterator over lists of messages of one stream. See ``KafkaStream.batches``.

    Raises from ``next`` what ``ConsumerIterator`` raises.
    """

    def __init__(
        self, messages: ConsumerIterator, max_messages: int, timeout: float | None
    ) -> None:
        check_most(max_messages)
        _check_timeout(timeout)
        self._messages = messages
        self._most = max_messages
        self._timeout = timeout
        super().__init__()

    def __iter__(self) -> BatchIterator:
        return self

    def _items(self) -> Generator[Any, None, None]:
        return self._messages.several(self, self._most, None, self._timeout)


class ArrowIterator(HandOut[RecordBatch]):
    """Iterator over ``pyarrow.RecordBatch`` of one stream. See ``KafkaStream.arrow_batches``.

    Raises from ``next`` what ``ConsumerIterator`` raises.
    """

    def __init__(self, messages: ConsumerIterator, timeout: float | None) -> None:
        _check_timeout(timeout)
        # An import that a signal handler ends cannot be repeated: numpy refuses.
        importing = Undisturbed(partial(import_module, "zkconsumer.broker.columns"))
        importing.start()
        importing.wait()
        try:
            columns: Any = importing.result()
        except ImportError as exc:
            raise UsageError(
                f"arrow_batches needs pyarrow and numpy: install the extra 'arrow' ({exc})"
            ) from None
        self.schema = columns.SCHEMA
        """The ``pyarrow.Schema`` of every batch."""
        self._empty = columns.of_records("", 0, [])
        self._messages = messages
        self._timeout = timeout
        super().__init__()

    def __iter__(self) -> ArrowIterator:
        return self

    def _items(self) -> Generator[Any, None, None]:
        return self._messages.several(self, 1, self._empty, self._timeout)


def check_most(max_messages: int) -> None:
    """Raise ``ValueError`` unless a list may have this many messages."""
    if max_messages < 1:
        raise ValueError(f"max_messages is {max_messages}: give at least 1")


def _check_timeout(timeout: float | None) -> None:
    if timeout is not None and timeout < 0:
        raise ValueError(f"timeout is {timeout}: give seconds, or None")
