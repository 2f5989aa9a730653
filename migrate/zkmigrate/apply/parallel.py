"""Works on several groups at a time, each in a thread that uses its own connections.

The calling thread submits the groups and gets the results. Other threads do the work, also if there
is only one, since Ctrl-C interrupts the calling thread in the middle of what it does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from threading import Event, Lock
from typing import Generic, TypeVar

Item = TypeVar("Item")
Worker = TypeVar("Worker")
Result = TypeVar("Result")


class Parallel(Generic[Worker]):
    """Works on as many items at a time as there are workers.

    Args:
        workers: each is used by one thread at a time.
        stopped: is set after Ctrl-C, or after an error that concerns all items.
        stop_waiting: makes workers fail instead of waiting; called once ``stopped`` is set.
    """

    def __init__(
        self, workers: Sequence[Worker], stopped: Event, stop_waiting: Callable[[], object]
    ) -> None:
        self._count = len(workers)
        self._workers: SimpleQueue[Worker] = SimpleQueue()
        for worker in workers:
            self._workers.put(worker)
        self._stopped = stopped
        self._begin = Lock()
        """Held while an item is begun."""
        self._stop_waiting = stop_waiting

    def each(
        self, items: Iterable[Item], work: Callable[[Worker, Item], Result]
    ) -> Generator[tuple[Item, Result]]:
        """Yield each item with its result, as the work on it ends.

        After an error or Ctrl-C, the items in progress are finished without waiting for anything,
        and no other item is begun.
        """

        def task(item: Item) -> tuple[Item, Result] | None:
            with self._begin:
                if self._stopped.is_set():
                    return None
                worker = self._workers.get()  # there are as many as threads
            try:
                return item, work(worker, item)
            except BaseException:
                self._stopped.set()  # before this thread begins another item
                raise
            finally:
                self._workers.put(worker)

        under_way: list[Future[tuple[Item, Result] | None]] = []

        def ended() -> Iterator[tuple[Item, Result]]:
            """Wait for at least one to end, and take those that did, in the order of the items."""
            done = wait(under_way, return_when=FIRST_COMPLETED).done
            for one in [one for one in under_way if one in done]:
                under_way.remove(one)
                outcome = one.result()
                if outcome is not None:
                    yield outcome

        try:
            with ThreadPoolExecutor(self._count, "zkmigrate") as pool:
                try:
                    for item in items:
                        under_way.append(pool.submit(task, item))
                        if len(under_way) >= 2 * self._count:
                            yield from ended()
                    while under_way:
                        yield from ended()
                except BaseException:
                    with self._begin:
                        self._stopped.set()
                    self._stop_waiting()
                    raise
        finally:  # a thread whose start was interrupted is not one that the pool waits for
            for worker in [self._workers.get() for _ in range(self._count)]:
                self._workers.put(worker)
