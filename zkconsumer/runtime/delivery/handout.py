"""HandOut: iterators that know whether their caller got the last item, whatever a signal does.

A signal handler may raise between any two bytecodes of the main thread. What an iterator has taken
then must be either with its caller, or be taken back. With ``__next__`` as a function nobody can
know: an exception at its ``return`` is not met by any ``try``. A ``yield`` is, and the caller has
the item as soon as the ``yield`` has been carried out. So the items come from a generator, and
``__next__`` is the generator's own: there is no Python code between its ``yield`` and the caller.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

_T = TypeVar("_T")


class HandOut(Iterator[_T]):
    """An iterator over what ``_items`` yields.

    An exception ends a generator, but not this iterator: another generator is ready beforehand.
    """

    if TYPE_CHECKING:

        def __next__(self) -> _T: ...

    else:
        __slots__ = ("__next__",)
        # A slot's value is what the interpreter calls: there is no function around it.

    def __init__(self) -> None:
        self._spare: Callable[[], _T] | None = None
        self.__next__ = self._ready()  # type: ignore[method-assign]

    @abstractmethod
    def _items(self) -> Generator[Any, None, None]:
        """Yield anything once, then the items.

        Everything after the first ``yield`` is inside a ``try``. However it ends, except with
        ``GeneratorExit``, it calls ``_renew`` after beginning and puts the spare in its place:
        ``self.__next__ = self._spare or self._ready()``, and ``self._spare = None``.
        """

    def _ready(self) -> Callable[[], _T]:
        """A generator that has begun, so that all that it meets is inside its ``try``."""
        items = self._items()
        next(items)
        return items.__next__

    def _renew(self) -> None:
        """Make a spare generator, unless there is one."""
        if self._spare is None:
            self._spare = self._ready()
