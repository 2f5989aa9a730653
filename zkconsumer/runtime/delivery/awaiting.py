"""Awaited: the items of a stream, for ``async for``. Runs on the event loop's thread.

It takes items through ``Reader``, as every other call does, but never waits there. asyncio cancels
a coroutine where it is suspended. An item is taken after the last such point, so it is either not
taken, or the caller receives it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, TypeVar

from zkconsumer.runtime.delivery.handout import HandOut, InUseError
from zkconsumer.runtime.undisturbed import Alarm

_T = TypeVar("_T")
_TURN: Final = 0.01
"""Seconds after which other coroutines may run although more items are available."""


class Awaited(AsyncIterator[_T]):
    """Iterates asynchronously over the items of a stream.

    Args:
        items: takes items without waiting, and yields ``nothing`` if there is no item.
        alarm: the alarm of the stream's queue.
        limit: seconds to wait for an item; ``None`` waits indefinitely.
        waited: called if no item arrived within the limit. Returns the item to yield instead, or
            raises ConsumerTimeoutError.
    """

    def __init__(
        self,
        items: HandOut[_T],
        nothing: object,
        alarm: Alarm,
        limit: float | None,
        waited: Callable[[float | None], _T],
    ) -> None:
        self._items = items
        self._nothing = nothing
        self._alarm = alarm
        self._limit = limit
        self._waited = waited
        self._turn_ends = 0.0

    async def __anext__(self) -> _T:
        loop = asyncio.get_running_loop()
        if loop.time() >= self._turn_ends:
            await asyncio.sleep(0)
            self._turn_ends = loop.time() + _TURN
        item = self._take()
        return await self._wait(loop) if item is self._nothing else item

    def _take(self) -> _T:
        for item in self._items:
            return item
        raise StopAsyncIteration

    async def _wait(self, loop: asyncio.AbstractEventLoop) -> _T:
        alarm, waiter = self._alarm, _Waiter(loop)
        if isinstance(alarm.also, _Waiter) and alarm.also.waits:
            raise InUseError(
                "another task is already waiting for this stream: use one task for each stream, "
                "and create as many streams as there are tasks"
            )
        timer = None if self._limit is None else loop.call_later(self._limit, waiter.end)
        alarm.call(waiter)
        try:
            while (item := self._take()) is self._nothing:
                if waiter.over:
                    return self._waited(self._limit)
                await waiter.news.wait()
                waiter.news.clear()
            return item
        finally:
            if timer is not None:
                timer.cancel()
            if alarm.also is waiter:
                alarm.call(None)


class _Waiter:
    """Wakes the current task. Called on the thread that sets the alarm."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._task = asyncio.current_task()
        self.news = asyncio.Event()
        self.over = False
        """Whether the time limit has passed."""

    def __call__(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self.news.set)
        except RuntimeError:
            pass  # the loop is closed

    def end(self) -> None:
        """Record that the time limit has passed."""
        self.over = True
        self.news.set()

    @property
    def waits(self) -> bool:
        """Return whether its task must continue to wait."""
        task = self._task
        return not (task is None or task.done() or task.cancelling() or self._loop.is_closed())
