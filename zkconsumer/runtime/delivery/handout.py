"""HandOut: iterators that know whether their caller received the last item, even if a signal
handler raises.

A signal handler may raise between any two bytecodes of the main thread. Then an item that an
iterator has taken must either reach the caller or be put back. If ``__next__`` were a function, no
code could find out: no ``try`` catches an exception at its ``return``. A ``try`` does catch one at
a ``yield``, and the caller has the item as soon as the ``yield`` is complete. So the items are
produced by a generator, and ``__next__`` is the generator's own: there is no Python code between
its ``yield`` and the caller. Any thread may use ``refuse`` and ``is_refusal``.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from zkconsumer.errors import UsageError

_T = TypeVar("_T")
_READING: Final = frozenset({__name__, "zkconsumer.runtime.delivery.reader"})
"""Modules with the functions that read a stream. No signal handler is defined in them."""


class HandOut(Iterator[_T], AsyncIterable[_T]):
    """An iterator over a generator's items, for ``for`` and ``async for``.

    An exception ends a generator, but not this iterator: a spare generator is kept ready.

    Args:
        items: makes a generator for this iterator. Its first yielded value is ignored; the items
            follow. Everything after the first ``yield`` is inside a ``try``. Whenever a started
            generator ends, except with ``GeneratorExit``, it calls ``renew`` and replaces itself
            with the spare: ``self.__next__ = self.spare or self.ready()``, and ``self.spare =
            None``.
        awaited: makes the iterator for ``async for``.
    """

    if TYPE_CHECKING:

        def __next__(self) -> _T: ...

    else:
        __slots__ = ("__next__", "_awaited", "_items", "spare")
        # A slot's value is what the interpreter calls: there is no function around it.

    def __init__(
        self,
        items: Callable[[HandOut[Any]], Generator[Any, None, None]],
        awaited: Callable[[], AsyncIterator[_T]],
    ) -> None:
        self._items = items
        self._awaited = awaited
        self.spare: Callable[[], _T] | None = None
        """The spare generator's ``__next__``, if there is one."""
        self.__next__ = self.ready()  # type: ignore[method-assign]

    def __iter__(self) -> HandOut[_T]:
        return self

    def __aiter__(self) -> AsyncIterator[_T]:
        return self._awaited()

    def ready(self) -> Callable[[], _T]:
        """Return a generator that has been started, so that its ``try`` catches exceptions."""
        items = self._items(self)
        next(items)
        return items.__next__

    def renew(self) -> None:
        """Create a spare generator, unless there is one."""
        if self.spare is None:
            self.spare = self.ready()


class InUseError(UsageError):
    """A stream is read by two calls at once: in two threads, or in a signal handler that
    interrupted the first call."""


def refuse() -> NoReturn:
    """Raise InUseError for this call. Its text depends on where the other call is running."""
    frame = sys._getframe(1)
    interrupts = False
    while frame.f_back is not None:
        before, frame = frame, frame.f_back
        reads = frame.f_globals.get("__name__") in _READING
        interrupts |= reads and before.f_globals.get("__name__") not in _READING
    if interrupts:
        raise InUseError(
            "a signal handler cannot read the stream whose read it interrupted: set a flag, "
            "or raise an exception"
        )
    raise InUseError(
        "another thread is reading this stream: use one thread for each stream, and create as many "
        "streams as there are threads"
    )


def is_refusal(error: BaseException) -> bool:
    """Whether ``error`` refused the caller's own read, not a read in a signal handler."""
    place = error.__traceback__
    while place is not None and place.tb_frame.f_globals.get("__name__") in _READING:
        place = place.tb_next
    return place is None
