"""Works on several groups at a time, each in a thread that uses its own connections.

``Parallel`` has the threads. ``Run`` does what all commands do before and after the work on each
group: hooks, and journal records. The calling thread submits the groups and receives the results.
Other threads do the work, even for a single group, because Ctrl-C may interrupt the calling thread
at any point.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from queue import SimpleQueue
from threading import Event, Lock
from typing import Any, Generic, TypeVar

from zkmigrate.apply.hooks import Hooks
from zkmigrate.apply.journal import Journal
from zkmigrate.apply.outcome import Outcome, Result, result_of
from zkmigrate.apply.records import outcome_of
from zkmigrate.plan.cases import Case

Item = TypeVar("Item")
Worker = TypeVar("Worker")
Got = TypeVar("Got")


class Parallel(Generic[Worker]):
    """Works on several items at a time, one for each worker.

    Args:
        workers: objects that do the work, each used by one thread at a time.
        stopped: set after Ctrl-C, or after an error that concerns all items.
        stop_waiting: called when ``stopped`` is set, to make waiting workers fail.
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
        """Held while work on an item is started."""
        self._stop_waiting = stop_waiting

    def each(
        self, items: Iterable[Item], work: Callable[[Worker, Item], Got]
    ) -> Generator[tuple[Item, Got]]:
        """Yield each item with the result of the work on it, in the order in which work ends. After
        an error or Ctrl-C, items in progress are finished without waiting, and no other item is
        started. Finished items are yielded before the error is raised, unless the error is the
        caller's."""

        def task(item: Item) -> tuple[Item, Got] | None:
            with self._begin:
                if self._stopped.is_set():
                    return None
                worker = self._workers.get()  # there are as many as threads
            try:
                outcome = item, work(worker, item)
                unreported.append(outcome)
                return outcome
            except BaseException:
                self._stopped.set()  # before this thread begins another item
                raise
            finally:
                self._workers.put(worker)

        under_way: list[Future[tuple[Item, Got] | None]] = []
        unreported: list[tuple[Item, Got]] = []

        def ended() -> Iterator[tuple[Item, Got]]:
            """Wait until at least one item has ended. Return all that have, in the order of the
            items."""
            done = wait(under_way, return_when=FIRST_COMPLETED).done
            for one in [one for one in under_way if one in done]:
                under_way.remove(one)
                outcome = one.result()
                if outcome is not None:
                    yield outcome
                    unreported.remove(outcome)

        failed: BaseException | None = None
        try:
            with ThreadPoolExecutor(self._count, "zkmigrate") as pool:
                try:
                    for item in items:
                        under_way.append(pool.submit(task, item))
                        if len(under_way) >= 2 * self._count:
                            yield from ended()
                    while under_way:
                        yield from ended()
                except BaseException as error:
                    with self._begin:
                        self._stopped.set()
                    self._stop_waiting()
                    if isinstance(error, GeneratorExit):
                        raise
                    failed = error
        finally:  # a thread whose start was interrupted is not one that the pool waits for
            for worker in [self._workers.get() for _ in range(self._count)]:
                self._workers.put(worker)
        if failed is not None:
            yield from unreported
            raise failed


class Run:
    """One run of a command that changes groups. Threads may share it, but only one at a time may
    work on a group.

    Args:
        journal: the open journal. Without one it is a dry run, which runs no hook and records
            nothing.
        hooks: commands to run before and after each group that is not done yet.
        idle: whether to record an outcome for groups that needed no work. Otherwise their earlier
            outcome remains the last one.
        earlier: for a dry run, the journal's records of earlier runs.
    """

    def __init__(
        self,
        journal: Journal | None = None,
        hooks: Hooks | None = None,
        idle: bool = False,
        earlier: list[dict[str, Any]] | None = None,
    ) -> None:
        self.journal = journal
        self.records = (earlier or []) if journal is None else journal.records
        """The records of earlier runs."""
        self.hooks = hooks or Hooks()
        self.stopped = Event()
        """Set when the run ends early."""
        self._idle = idle
        self._hooked: dict[str, dict[str, str]] = {}
        """The groups whose first hook was run, and the variables that it received."""
        self._begun: set[str] = set()
        """The groups with a step in the journal."""

    def begin(self, group: str, case: Callable[[], Case] | None = None, in_kafka: str = "") -> None:
        """Run the hook before a group, unless it was already run. Raises GroupRefusedError if it
        fails.

        ``case``: returns the group's case for the hook; ``None``: the case is unknown, because no
        broker is asked. ``in_kafka``: the group's name in Kafka, if different.
        """
        if self.journal is not None and self.hooks and group not in self._hooked:
            what = "" if case is None else case().value
            facts = {"GROUP": group, "KAFKA_GROUP": in_kafka or group, "CASE": what}
            self.hooks.begin(group, facts)
            self._hooked[group] = facts

    def end(self, result: Result) -> Result:
        """Run the hook after a group, record its outcome, and return it."""
        facts = self._hooked.pop(result.group, None)
        if facts is not None:
            result = self.hooks.end(result, facts)
        idle = result.outcome is Outcome.NOTHING and result.group not in self._begun
        if self.journal is not None and (self._idle or not idle):
            self.journal.write(**outcome_of(result))
        return result

    def step(self, group: str, step: str, **facts: object) -> None:
        """Write to the journal that a step of the work on a group begins."""
        if self.journal is not None:
            self._begun.add(group)
            self.journal.write(group=group, step=step, **facts)

    def carry_out(
        self,
        group: str,
        step: str,
        act: Callable[[bool], Result],
        case: Callable[[], Case] | None = None,
    ) -> Result:
        """Call ``act`` with ``False``, to check. If there is something to do, run the hook before
        the group, record the step, and call ``act`` with ``True``. A dry run only checks."""
        result = act(False)
        if result.outcome is not Outcome.WOULD or self.journal is None:
            return result
        self.begin(group, case)
        self.step(group, step)
        return act(True)

    def each(
        self,
        workers: Sequence[Worker],
        groups: Iterable[str],
        work: Callable[[Worker, str], Result],
        stop_waiting: Callable[[], object] = lambda: None,
    ) -> Iterator[Result]:
        """Work on groups in parallel, one per worker. Yield the outcomes in any order.

        See ``Parallel``. Raises JournalError and ZkUnavailableError, which concern all groups.
        """

        def one(worker: Worker, group: str) -> Result:
            return self.end(result_of(group, partial(work, worker, group)))

        pool = Parallel(workers, self.stopped, stop_waiting)
        with closing(pool.each(groups, one)) as ended:
            yield from (result for _, result in ended)
