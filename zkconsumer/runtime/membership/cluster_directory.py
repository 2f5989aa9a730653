"""ClusterDirectory: answers a member's reads below ``/brokers`` from the brokers' answers.

So a member does not need the tree that brokers in ZooKeeper mode maintain. Data that was read with
a watch is compared whenever the brokers are asked again. Runs on the host's thread;
``ClusterPort``, which asks the brokers, may answer on any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from zkconsumer.core.zookeeper.cluster_view import (
    ClusterView,
    answer,
    changed_paths,
    is_of_cluster,
    watched_by,
)
from zkconsumer.core.zookeeper.ops import OffsetOp, Reply, ZkOp
from zkconsumer.runtime.membership.loop import Host

_RETRY: Final = 1.0
"""Seconds until the brokers are asked again after a failure."""


class ClusterPort(Protocol):
    """A connection that reads the description of the cluster from the brokers
    (``zkconsumer.runtime.membership.line``)."""

    def submit(self, request: None, on_answer: Callable[..., object]) -> None:
        """Request the description of the cluster. Call ``on_answer`` once, on any thread, with the
        description or with the reason for the failure."""

    def close(self) -> None:
        """Abandon the request in progress."""


class ClusterDirectory:
    """Answers reads about brokers and topics from the brokers' description of the cluster.

    Args:
        host: runs the member.
        port: asks the brokers.
        ids_only: read topics from ZooKeeper, and ask the brokers only for their addresses.
        on_watch: called with a path whose watch fires.
    """

    def __init__(
        self,
        host: Host,
        port: ClusterPort,
        ids_only: bool,
        on_watch: Callable[[str], object],
    ) -> None:
        self.fault = ""
        """Why the brokers have not answered; cleared by an answer. Any thread may read it."""
        self._host = host
        self._port = port
        self._ids_only = ids_only
        self._on_watch = on_watch
        self._view: ClusterView | None = None
        self._watched: set[str] = set()
        self._waiting: list[tuple[ZkOp | OffsetOp, Callable[[Reply], object]]] = []
        self._asking = False

    def takes(self, op: ZkOp | OffsetOp) -> bool:
        """Whether this directory, not ZooKeeper, answers an operation."""
        return is_of_cluster(op, self._ids_only)

    def submit(self, op: ZkOp | OffsetOp, on_reply: Callable[[Reply], object]) -> None:
        """Answer an operation, immediately or when a broker has answered."""
        self._watched.update(watched_by(op))
        if self._view is None:
            self._waiting.append((op, on_reply))
            self.refresh()
        else:
            on_reply(answer(self._view, op))

    def refresh(self) -> None:
        """Ask the brokers to describe the cluster, unless such a request is in progress."""
        if not self._asking:
            self._asking = True
            self._port.submit(
                None, lambda view, *_sent: self._host.post(partial(self._answered, view))
            )

    def close(self) -> None:
        """Abandon the request in progress."""
        self._port.close()

    def _answered(self, view: ClusterView | str) -> None:
        self._asking = False
        if isinstance(view, str):
            if not self.fault:
                self._host.log(logging.WARNING, f"the cluster cannot be read: {view}")
            self.fault = view
            if self._waiting:
                self._host.after(_RETRY, self.refresh)
            return
        self.fault = ""
        before, self._view = self._view, view
        waiting, self._waiting = self._waiting, []
        for op, on_reply in waiting:
            on_reply(answer(view, op))
        if before is not None:
            for path in changed_paths(before, view):
                if path in self._watched:
                    self._watched.discard(path)
                    self._on_watch(path)
