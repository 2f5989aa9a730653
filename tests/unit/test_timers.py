"""Timers: what is due is done in its order, and an item is never lost."""

from __future__ import annotations

import queue

from zkconsumer.runtime.timers import Timers


def test_items_and_actions() -> None:
    """Actions run in order of their times; an item comes at once, whatever waits for later."""
    timers, mailbox, done = Timers(), queue.SimpleQueue[str](), []
    timers.after(0.5, lambda: done.append("second"))
    timers.after(0, lambda: done.append("first"))
    timers.after(600, lambda: done.append("never"))
    mailbox.put("item")
    assert timers.wait(mailbox) == "item"
    assert done == ["first"]
    assert timers.wait(mailbox) is None
    assert done == ["first", "second"]


def test_an_action_again_and_again() -> None:
    """``every`` sets itself again before the action, which may fail or take long."""
    timers, mailbox, done = Timers(), queue.SimpleQueue[str](), []
    timers.every(0.001, lambda: done.append(None))
    while len(done) < 5:
        assert timers.wait(mailbox) is None
