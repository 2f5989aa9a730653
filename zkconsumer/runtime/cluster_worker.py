"""ClusterWorker: asks the brokers for the description of their cluster, on its own thread."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from zkconsumer.broker.cluster import ClusterReader
from zkconsumer.core.zookeeper.cluster import ClusterView
from zkconsumer.errors import BrokerError
from zkconsumer.runtime.threads import check_lives

logger = logging.getLogger("zkconsumer.member")


class ClusterWorker:
    """The ``ClusterPort`` of production. ``read`` and ``close`` by any thread.

    Args:
        reader: used by the worker's thread only, and closed with it.
        name: of the thread.
    """

    def __init__(self, reader: ClusterReader, name: str) -> None:
        self._reader = reader
        self._work: queue.SimpleQueue[Callable[[ClusterView | str], object] | None] = (
            queue.SimpleQueue()
        )
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def read(self, on_answer: Callable[[ClusterView | str], object]) -> None:
        """See ``ClusterPort``."""
        self._work.put(on_answer)

    def close(self) -> None:
        """Abandon the request in progress and end the thread."""
        self._closed = True
        self._reader.abort()
        self._work.put(None)

    def check(self) -> None:
        """Raise RuntimeError if the thread has ended before ``close``."""
        if not self._closed:
            check_lives(self._thread)

    def _run(self) -> None:
        while (on_answer := self._work.get()) is not None:
            on_answer(self._ask())
        self._reader.disconnect()

    def _ask(self) -> ClusterView | str:
        try:
            return self._reader.read()
        except BrokerError as error:
            return str(error)
        except Exception as error:  # without an answer the member would wait indefinitely
            logger.exception("asking the brokers for their cluster has failed")
            return f"the brokers' cluster: {error!r}"
