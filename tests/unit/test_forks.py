"""A process that is forked while a member runs."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable

import pytest

from tests.support.batches import chunk
from tests.unit.conftest import Member
from zkconsumer.servers import wait_until
from zkconsumer.zk.connection import Handler


def in_a_child(ask: Callable[[], object]) -> object:
    """The answer of a forked process, which has 20 seconds."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            os.write(writing, json.dumps(ask()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text or "null")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_is_refused_and_the_parent_continues(member: Member) -> None:
    """The child has none of the member's threads. Each call says so at once, and ``health`` is not
    ok. The parent's member does not notice."""
    (stream,) = member.create_message_streams({"t": 1})["t"]
    plane = member._plane
    assert plane is not None
    wait_until(lambda: member.health(0.0).delivering, 10, "it delivers")
    ((info, _),) = plane.partitions()
    stream._reader.queue.put(chunk(info, 0, 5))
    iterator = iter(stream)
    assert next(iterator).offset == 0

    def calls() -> object:
        said = []
        for call in (
            iterator.__next__,
            stream.try_next,
            stream.mark_consumed,
            lambda: next(stream.batches()),
            member.commit_offsets,
            member.commit_offsets_async,
            member.metrics,
            lambda: member.set_consumer_rebalance_listener(None),  # type: ignore[arg-type]
            lambda: member.create_message_streams({"t": 1}),
            member.shutdown,
        ):
            try:
                call()
                said.append("nothing")
            except Exception as error:  # noqa: BLE001
                said.append(f"{type(error).__name__}: {error}")
        health = member.health()
        return said, health.ok, health.alive, [str(reason) for reason in health.reasons]

    held, ended = threading.Event(), threading.Event()

    def hold() -> None:
        with stream._reader._lock, member._lock:
            held.set()
            ended.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    try:
        answer = in_a_child(calls)
    finally:
        ended.set()
        holder.join()
    assert isinstance(answer, list)
    said, ok, alive, reasons = answer
    assert len(said) == 10
    assert all("create a connector in the process that uses it" in text for text in said), said
    assert all(text.startswith("ConnectorClosedError: ") for text in said)
    assert (ok, alive, len(reasons)) == (False, False, 1)
    assert "forked" in reasons[0]
    assert [next(iterator).offset for _ in range(3)] == [1, 2, 3]
    member.commit_offsets()
    assert member.health().ok


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_exit_of_a_forked_process_waits_for_no_lock() -> None:
    """kazoo stops its threads when the interpreter exits. In the child they do not exist, and a
    thread of the parent may have had their locks."""
    handler = Handler(lambda error: None)
    handler.start()
    try:
        with handler._state_change:
            assert in_a_child(lambda: [handler.stop()]) == [None]
    finally:
        handler.stop()
