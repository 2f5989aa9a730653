"""KafkaStream: the application's side of a stream (Scala: KafkaStream, ConsumerIterator).

One application thread iterates a stream. Every method of reading requests the next item from the
stream's ``Reader``: a message, a list of messages, or columns.

In the default profile a message counts as consumed when the next one is requested, or with
``mark_consumed``. So a commit never covers a message that the application is still processing. In
the scala profile a message counts as consumed when it is returned.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from zkconsumer.broker.fetching.records import MessageAndMetadata
from zkconsumer.errors import UsageError
from zkconsumer.runtime.delivery.handout import HandOut
from zkconsumer.runtime.delivery.reader import Reader, RecordBatch, take
from zkconsumer.runtime.undisturbed import Undisturbed


class KafkaStream:
    """Messages of the partitions that one consumer thread id owns, in order for each partition.

    ``create_message_streams`` of a connector returns streams. Iterate a stream with ``for``;
    ``iter()`` gives the same iterator each time. Not for use by several threads at once: a call
    while another thread is looking for a message raises ``UsageError``, or Python's own
    ``ValueError: generator already executing``.

    In a coroutine use ``async for``, also on what ``batches`` and ``arrow_batches`` return. The
    coroutine may be cancelled at any time: a message that it has not received is delivered next. A
    call while another task is waiting for the stream may raise ``UsageError``.

    Every call that looks for a message may raise:

    - ConsumerTimeoutError: no message arrived within ``consumer.timeout.ms``. Reading may continue.
    - InvalidMessageError, MessageSizeTooLargeError, CodecUnavailableError, ConnectorFailedError:
      the stream, or the whole connector, has failed. Every later call raises ``UsageError``.

    An exception that a signal handler raises passes to the caller. Reading may continue after it:
    no message is skipped, and the last one may be delivered again.
    """

    __slots__ = ("_reader",)

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __iter__(self) -> Iterator[MessageAndMetadata]:
        return self._reader.messages

    def __aiter__(self) -> AsyncIterator[MessageAndMetadata]:
        return aiter(self._reader.messages)

    def try_next(self) -> MessageAndMetadata | None:
        """Return the next message, or ``None`` if there is none now. Never waits.

        Otherwise it is like ``next`` on the iterator: it counts the current message as consumed,
        raises the same errors, and raises ``StopIteration`` after ``shutdown``.
        """
        return take(self._reader.polled)

    def batches(
        self, max_messages: int = 500, timeout: float | None = None
    ) -> HandOut[list[MessageAndMetadata]]:
        """Iterate over lists of messages instead of single ones. This is several times faster.

        A list has at least one message, all of one partition and in order. It counts as consumed as
        a whole, when the application asks for the next list or calls ``mark_consumed``. So a crash
        repeats up to one list, not just one message. A partition is released when the application
        has finished its list, so a list should take less time than ``zkconsumer.release.wait.ms``.
        In all other respects a list behaves like a message: the end and failures of the stream,
        ``consumer.timeout.ms``, and revoked partitions.

        Args:
            max_messages: largest number of messages in a list. A list also ends at the end of the
                data of one fetch.
            timeout: seconds to wait for a message; with 0 a call never waits. Then an empty list
                is returned, so that the application can do other work. By default
                ``consumer.timeout.ms`` decides.

        Raises:
            ValueError: ``max_messages`` is below 1, or ``timeout`` is negative.
        """
        _check_most(max_messages)
        _check_timeout(timeout)
        return self._reader.lists(max_messages, timeout)

    def arrow_batches(
        self, timeout: float | None = None, columns: Sequence[str] | None = None
    ) -> HandOut[RecordBatch]:
        """Iterate over ``pyarrow.RecordBatch`` objects: columns instead of messages.

        Each batch has the remaining messages of one partition from one fetch, with the columns
        topic, partition, offset, timestamp (milliseconds, UTC; null in format 0), key, value and
        headers. Keys and values are bytes; the stream's decoders are not called. A batch counts as
        consumed as a whole, and behaves like a list of ``batches`` in all other respects.

        Args:
            timeout: seconds to wait for a message; with 0 a call never waits. Then a batch without
                rows is returned. By default ``consumer.timeout.ms`` decides.
            columns: names of the columns to have, in this order, such as ``("offset", "value")``;
                by default all. Columns that are left out cost nothing.

        Raises:
            UsageError: pyarrow or numpy is not installed (extra ``arrow``).
            ValueError: ``timeout`` is negative, or ``columns`` is empty or has an unknown name.
        """
        _check_timeout(timeout)
        # An import that a signal handler ends cannot be repeated: numpy refuses.
        importing = Undisturbed(partial(import_module, "zkconsumer.broker.fetching.columns"))
        importing.start()
        importing.wait()
        try:
            module: Any = importing.result()
        except ImportError as exc:
            raise UsageError(
                f"arrow_batches needs pyarrow and numpy: install the extra 'arrow' ({exc})"
            ) from None
        empty = module.of_records("", 0, [], module.schema_of(columns))
        return self._reader.columns(empty, timeout)

    def mark_consumed(self) -> None:
        """Count the current message or list as consumed now, without asking for the next one."""
        self._reader.mark_consumed()


def _check_most(max_messages: int) -> None:
    if max_messages < 1:
        raise ValueError(f"max_messages is {max_messages}: it must be at least 1")


def _check_timeout(timeout: float | None) -> None:
    if timeout is not None and timeout < 0:
        raise ValueError(f"timeout is {timeout}: use a non-negative number of seconds, or None")
